{{/* What the schema can't tell. Each problem ends the rendering, with what to do. */}}
{{- define "gpuledger.checks" -}}
{{- include "gpuledger.checks.keys" . -}}
{{- if ne .Release.Namespace "gpuledger-system" -}}
  {{- fail (printf "\n\ngpuledger lives in the namespace gpuledger-system, not in %s: its policies name its accounts there. Say: --namespace gpuledger-system --create-namespace\n" .Release.Namespace) -}}
{{- end -}}
{{- if hasKey .Values.files "settings.yaml" -}}
  {{- fail "\n\nfiles: settings.yaml is the file that the chart writes; put its content under `settings`.\n" -}}
{{- end -}}
{{- include "gpuledger.checks.settings" . -}}
{{- $mode := include "gpuledger.admission" . -}}
{{- if and (eq $mode "policies") (not (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version)) -}}
  {{- fail (printf "\n\nadmission.mode is policies, but MutatingAdmissionPolicy is stable from Kubernetes 1.36 on, and this is %s. Take auto, or webhook, or validating (pods then name the scheduler themselves).\n" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $webhook := .Values.admission.webhook -}}
{{- if and (eq $mode "webhook") (eq $webhook.certificate "secret") (not $webhook.caBundle) (not .Values.admission.rendered) -}}
  {{- fail "\n\nadmission.webhook.certificate is secret, so the API server has to be told whom to trust: --set-file admission.webhook.caBundle=tls.crt\n" -}}
{{- end -}}
{{- if ne $mode "none" -}}
  {{- include "gpuledger.checks.words" . -}}
{{- end -}}
{{- end -}}

{{/* What the program would refuse when it starts: settings that contradict each other. */}}
{{- define "gpuledger.checks.settings" -}}
{{- $root := . -}}
{{- $schedulers := include "gpuledger.schedulers" . | fromJsonArray -}}
{{- if or (has "default-scheduler" $schedulers) (ne (len $schedulers) (len (uniq $schedulers))) -}}
  {{- fail (printf "\n\nsettings: scheduler names must differ, and none can be default-scheduler, which is the cluster's own: %s\n" (join ", " $schedulers)) -}}
{{- end -}}
{{- $bind := include "gpuledger.setting" (list . "bind_timeout_s") | float64 -}}
{{- $extender := include "gpuledger.setting" (list . "extender_timeout_s") | float64 -}}
{{- if ge $bind $extender -}}
  {{- fail (printf "\n\nsettings: bind_timeout_s (%v) must be less than extender_timeout_s (%v), or answers come too late.\n" $bind $extender) -}}
{{- end -}}
{{- $counts := list -}}
{{- $others := list -}}
{{- range include "gpuledger.names" . | fromYamlArray -}}
  {{- $word := include "gpuledger.setting" (list $root .) -}}
  {{- if hasSuffix "_count" . -}}
    {{- $counts = append $counts $word -}}
  {{- else if $word -}}
    {{- $others = append $others $word -}}
  {{- end -}}
{{- end -}}
{{- $names := compact (concat (uniq $counts) $others) -}}
{{- if ne (len $names) (len (uniq $names)) -}}
  {{- fail (printf "\n\nsettings: names of resources must differ; only those of counts may be the same: %s\n" (join ", " $names)) -}}
{{- end -}}
{{- $byDriver := eq "driver" (include "gpuledger.setting" (list . "isolation")) -}}
{{- if and $byDriver .Values.agent.enabled (not .Values.agent.limitsByDriver) -}}
  {{- fail "\n\nsettings: isolation is driver, for which the agent needs the nodes' control groups, and SYS_ADMIN: --set agent.limitsByDriver=true\n" -}}
{{- end -}}
{{- if and $byDriver (eq "directory" (include "gpuledger.setting" (list . "delivery"))) -}}
  {{- fail "\n\nsettings: isolation is driver, for which delivery has to be cdi: the container runtime has to run a hook.\n" -}}
{{- end -}}
{{- if not (include "gpuledger.setting" (list . "resource_count")) -}}
  {{- fail "\n\nsettings: resource_count is the name that our own node agent serves; it can't be empty.\n" -}}
{{- end -}}
{{- end -}}

{{/* That the policies speak of the resources that operator, kube-scheduler and agents speak of. */}}
{{- define "gpuledger.checks.words" -}}
{{- $root := . -}}
{{- $settings := .Values.settings -}}
{{- $names := include "gpuledger.names" . | fromYamlArray -}}
{{- $fillable := concat $names (list "scheduler_name" "extra_scheduler_names" "node_taint" "volcano_capacity" "kueue" "sum_models" "sum_by" "queue_words" "hide_from_autoscalers" "admission_namespaces" "card_access" "overwrite_env") -}}
{{- $problems := list -}}
{{- range include "gpuledger.options" . | fromYamlArray -}}
  {{- $differs := and (hasKey $settings .name) (ne (get $settings .name | toJson) (toJson .default)) -}}
  {{- if and .in_policies $differs (not .stand_in) (not (has .name $fillable)) -}}
    {{- $problems = append $problems (printf "%s is set" .name) -}}
  {{- end -}}
{{- end -}}
{{- if eq "0" (include "gpuledger.setting" (list . "default_gpus")) -}}
  {{- $problems = append $problems "default_gpus is 0" -}}
{{- end -}}
{{- $words := list -}}
{{- range $names -}}
  {{- $word := include "gpuledger.setting" (list $root .) -}}
  {{- if not $word -}}
    {{- $problems = append $problems (printf "%s is empty" .) -}}
  {{- else if has $word $words -}}
    {{- $problems = append $problems (printf "%s is %s, as another name is" . $word) -}}
  {{- end -}}
  {{- $words = append $words $word -}}
{{- end -}}
{{- $again := "render it anew from these settings, by\n  gpuledger admission-policies --settings settings.yaml --output policies.yaml\n" -}}
{{- if .Values.admission.rendered -}}
  {{- $mode := include "gpuledger.admission" . -}}
  {{- $kind := get (dict "policies" "MutatingAdmissionPolicy" "webhook" "MutatingWebhookConfiguration" "validating" "ValidatingAdmissionPolicy") $mode -}}
  {{- if not (contains (printf "kind: %s\n" $kind) .Values.admission.rendered) -}}
    {{- fail (printf "\n\nadmission.rendered has no %s, which the mode %s is about: docs/helm.md says what belongs into it.\n" $kind $mode) -}}
  {{- end -}}
  {{- if and (eq $mode "webhook") (eq .Values.admission.webhook.certificate "generated") -}}
    {{- fail "\n\nadmission.rendered says whom the API server trusts, so it can't go with a certificate that Helm makes: set admission.webhook.certificate to secret or certManager.\n" -}}
  {{- end -}}
  {{- $text := nospace .Values.admission.rendered -}}
  {{- if ne $mode "policies" -}}{{/* only the policy that fills in speaks of it */}}
    {{- $words = without $words (include "gpuledger.setting" (list . "resource_priority")) -}}
  {{- end -}}
  {{- range compact $words -}}
    {{- if not (contains (quote .) $text) -}}
      {{- fail (printf "\n\nadmission.rendered does not speak of %q, of which the settings do: %s" . $again) -}}
    {{- end -}}
  {{- end -}}
  {{- $schedulers := include "gpuledger.schedulers" . -}}
  {{- if and (ne $mode "webhook") (not (contains $schedulers $text)) -}}
    {{- fail (printf "\n\nadmission.rendered is not for the scheduler names %s, which the settings have: %s" $schedulers $again) -}}
  {{- end -}}
  {{- $labelled := eq "labelled" (include "gpuledger.setting" (list . "admission_namespaces")) -}}
  {{- if ne $labelled (contains "gpuledger.dev/admission" $text) -}}
    {{- fail (printf "\n\nadmission.rendered is for other namespaces than the setting admission_namespaces: %s" $again) -}}
  {{- end -}}
{{- else if $problems -}}
  {{- fail (printf "\n\nsettings: %s. The API server's policies then differ in more than names, which is all that the chart can fill in. Render them with the same settings, and give them to the chart:\n  gpuledger admission-policies --settings settings.yaml --output policies.yaml\n  helm ... --set-file admission.rendered=policies.yaml\nor do without: --set admission.mode=none (docs/helm.md)\n" (join ", " $problems)) -}}
{{- end -}}
{{- end -}}
