{{/* Namespace and labels of what the Prometheus Operator reads. In the base, kustomization.yaml sets the former. */}}
{{- define "gpuledger.monitoring" -}}
{{- if not .Values.kustomize }}
  namespace: gpuledger-system
  labels:
    app.kubernetes.io/part-of: gpuledger
    {{- with .Values.monitoring.labels }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
{{- end -}}
