{{/* Requests and limits of a container, each on one line, where there are any. */}}
{{- define "gpuledger.resources" -}}
{{- $lines := list -}}
{{- range $kind, $amounts := dict "requests" .resources.requests "limits" .resources.limits -}}
  {{- $parts := list -}}
  {{- range $name, $amount := $amounts -}}
    {{- $parts = append $parts (printf "%s: %v" $name $amount) -}}
  {{- end -}}
  {{- if $parts -}}
    {{- $lines = prepend $lines (printf "%s: {%s}" $kind (join ", " $parts)) -}}
  {{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}
