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
     It was rendered for the defaults. A test compares the result with what the program itself renders. */}}
{{- define "gpuledger.filledIn" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (index . 1) -}}
{{- $names := include "gpuledger.names" $root | fromYamlArray -}}
{{- range include "gpuledger.options" $root | fromYamlArray -}}
  {{- if has .name $names -}}
    {{- $text = replace (quote .default) (printf "\"<%s>\"" .name) $text -}}
  {{- end -}}
{{- end -}}
{{- range $names -}}
  {{- $text = replace (printf "<%s>" .) (include "gpuledger.setting" (list $root .)) $text -}}
{{- end -}}
{{- $schedulers := include "gpuledger.schedulers" $root -}}
{{- $text = replace "expression: '[\"gpuledger\"]'" (printf "expression: '%s'" $schedulers) $text -}}
{{- $text = replace "value: \"gpuledger\"}" (printf "value: %q}" (include "gpuledger.setting" (list $root "scheduler_name"))) $text -}}
{{- include "gpuledger.labelled" (list $root $text) -}}
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
