{{/* The label that all objects have. For the kustomize base, kustomization.yaml sets it. */}}
{{- define "gpuledger.labels" -}}
{{- if not .Values.kustomize }}
  labels:
    app.kubernetes.io/part-of: gpuledger
{{- end -}}
{{- end -}}

{{/* The same, for objects that have labels already. */}}
{{- define "gpuledger.label" -}}
{{- if not .Values.kustomize }}
    app.kubernetes.io/part-of: gpuledger
{{- end -}}
{{- end -}}

{{/* A generated file with that label in its objects: include "gpuledger.labelled" (list . $text). */}}
{{- define "gpuledger.labelled" -}}
{{- $label := include "gpuledger.labels" (index . 0) -}}
{{- index . 1 | replace "\nmetadata:\n" (printf "\nmetadata:%s\n" $label) -}}
{{- end -}}
