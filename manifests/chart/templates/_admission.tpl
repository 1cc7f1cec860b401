{{/* What judges new pods: policies, validating, webhook or none. */}}
{{- define "gpuledger.admission" -}}
{{- if ne .Values.admission.mode "auto" -}}{{ .Values.admission.mode }}
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}policies
{{- else -}}webhook
{{- end -}}
{{- end -}}

{{/* The names of resources that policies are rendered with. The chart fills in yours. */}}
{{- define "gpuledger.names" -}}
[resource_count, resource_memory, resource_memory_percentage, resource_cores, resource_priority,
 volcano_count, volcano_memory, volcano_memory_percentage, volcano_cores, volcano_classic_count, volcano_classic_memory]
{{- end -}}

{{/* The names under which pods reach our scheduler, as CEL has lists. */}}
{{- define "gpuledger.schedulers" -}}
{{- $own := include "gpuledger.setting" (list . "scheduler_name") -}}
{{- concat (list $own) (.Values.settings.extra_scheduler_names | default list) | toJson -}}
{{- end -}}

{{/* A generated file for these settings: include "gpuledger.filledIn" (list . "files/validating.yaml").
     It was rendered for the default names, with numbers that stand for settings, and with all policies that there can
     be. A test compares the result with what the program itself renders. */}}
{{- define "gpuledger.filledIn" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (index . 1) -}}
{{- $names := include "gpuledger.names" $root | fromYamlArray -}}
{{- range include "gpuledger.options" $root | fromYamlArray -}}
  {{- if has .name $names -}}
    {{- $text = replace (quote .default) (printf "\"<%s>\"" .name) $text -}}
  {{- else if .stand_in -}}
    {{- $value := include "gpuledger.setting" (list $root .name) -}}
    {{- $number := .stand_in | int64 | toString -}}
    {{- with .most_mib -}}
      {{- $means := ternary "MiB per card" (printf "memory per card in units of %s MiB" $value) (eq $value "1") -}}
      {{- $most := div . (int64 $value) -}}
      {{- $text = replace (printf "{\"most\": \"0\", \"means\": \"memory per card in units of %s MiB\"" $number) (printf "{\"most\": \"%d\", \"means\": %q" $most $means) $text -}}
    {{- end -}}
    {{- $text = replace $number $value $text -}}
  {{- end -}}
{{- end -}}
{{- range $names -}}
  {{- $text = replace (printf "<%s>" .) (include "gpuledger.setting" (list $root .)) $text -}}
{{- end -}}
{{- $schedulers := include "gpuledger.schedulers" $root -}}
{{- $text = replace "in [\"gpuledger\"] &&" (printf "in %s &&" $schedulers) $text -}}
{{- $text = replace "expression: '[\"gpuledger\"]'" (printf "expression: '%s'" $schedulers) $text -}}
{{- $text = replace "value: \"gpuledger\"}" (printf "value: %q}" (include "gpuledger.setting" (list $root "scheduler_name"))) $text -}}
{{- $text = replace "\"default-scheduler\", \"gpuledger\"]" (printf "\"default-scheduler\", %s" (trimPrefix "[" $schedulers)) $text -}}
{{- with $root.Values.settings.sum_models -}}
  {{- $text = replace "'[\"<sum_models>=1\"]'" (. | toRawJson | replace "'" "''" | squote) $text -}}
{{- else -}}
  {{- $text = regexReplaceAll "\n  - name: without-sums\n    expression: \\|-\n(      .*\n)+" $text "\n" -}}
{{- end -}}
{{- if eq (include "gpuledger.setting" (list $root "sum_by")) "smallest" -}}
  {{- $text = replace ".max())})" ".min())})" $text -}}
{{- end -}}
{{- if ne (include "gpuledger.setting" (list $root "admission_namespaces")) "labelled" -}}
  {{- $text = regexReplaceAll "\n *- key: gpuledger.dev/admission\n *operator: In\n *values:\n *- 'true'" $text "" -}}
{{- end -}}
{{- $action := get (dict "warn" "Warn" "record" "Audit") (include "gpuledger.setting" (list $root "card_access")) | default "Deny" -}}
{{- $text = replace "policyName: gpuledger-card-access\n  validationActions:\n  - Deny" (printf "policyName: gpuledger-card-access\n  validationActions:\n  - %s" $action) $text -}}
{{- include "gpuledger.labelled" (list $root $text) -}}
{{- end -}}

{{/* Whether the settings want a policy that not every cluster has: include "gpuledger.wanted" (list . "gpuledger-sums"). */}}
{{- define "gpuledger.wanted" -}}
{{- $settings := (index . 0).Values.settings -}}
{{- $hiding := eq "true" (include "gpuledger.setting" (list (index . 0) "hide_from_autoscalers")) -}}
{{- $condition := get (dict "sums" $settings.sum_models "queues" $settings.queue_words "hiding" $hiding "env" $settings.overwrite_env) (trimPrefix "gpuledger-" (index . 1)) -}}
{{- if or $condition (not (has (index . 1) (list "gpuledger-sums" "gpuledger-queues" "gpuledger-hiding" "gpuledger-env"))) -}}true{{- end -}}
{{- end -}}

{{/* The mutation that lets pods tolerate the setting node_taint, key=value:effect. */}}
{{- define "gpuledger.toleration" -}}
{{- $taint := .Values.settings.node_taint -}}
{{- $label := regexReplaceAll ":[^:]*$" $taint "" -}}
{{- .Files.Get "files/toleration.yaml"
  | replace "<key>" (regexReplaceAll "=.*$" $label "")
  | replace "<value>" (regexReplaceAll "^[^=]*=" $label "")
  | replace "NoSchedule" (regexFind "[^:]*$" $taint) -}}
{{- end -}}
