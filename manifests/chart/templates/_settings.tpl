{{/* The settings as the program gets them: those of the values, and what other values stand for. A map as YAML. */}}
{{- define "gpuledger.configuration.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if and (eq (include "gpuledger.admission" .) "webhook") (not $settings.webhook_port) -}}
  {{- $_ := set $settings "webhook_port" 9443 -}}
{{- end -}}
{{- if .Values.agent.simulatedCards.number -}}
  {{- $_ := set $settings "devices_file" "/var/lib/gpuledger/cards.yaml" -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* All options, in the order of docs/settings.md: {name, default, in_policies}. A list as YAML. */}}
{{- define "gpuledger.options" -}}
{{- .Files.Get "files/settings.yaml" -}}
{{- end -}}

{{/* One setting, or its default: include "gpuledger.setting" (list . "health_port"). */}}
{{- define "gpuledger.setting" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- $settings := include "gpuledger.configuration.settings" $root | fromYaml -}}
{{- if hasKey $settings $name -}}
  {{- get $settings $name -}}
{{- else -}}
  {{- range include "gpuledger.options" $root | fromYamlArray -}}
    {{- if eq .name $name -}}{{- .default -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The file that the program reads. */}}
{{- define "gpuledger.configuration.settings.file" -}}
# The one place for settings: operator and kube-scheduler both start from it. All options: docs/settings.md
# What is not set here has its default.
{{- $settings := include "gpuledger.configuration.settings" . | fromYaml -}}
{{- range include "gpuledger.options" . | fromYamlArray -}}
{{- if hasKey $settings .name }}
{{- $value := get $settings .name }}
{{ .name }}: {{ if kindIs "slice" $value }}{{ toJson $value }}{{ else }}{{ toYaml $value }}{{ end }}
{{- end -}}
{{- end }}
{{ end -}}
