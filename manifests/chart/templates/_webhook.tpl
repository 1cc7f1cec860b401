{{/* What the operator's pod needs to answer the API server: in the Deployment, or as kustomize's patch of it. */}}
{{- define "gpuledger.webhook.port" -}}
- {name: webhook, containerPort: {{ . }}}
{{- end -}}
{{- define "gpuledger.webhook.mount" -}}
- {name: webhook, mountPath: /webhook, readOnly: true}
{{- end -}}
{{- define "gpuledger.webhook.volume" -}}
- name: webhook
  secret:
    secretName: {{ include "gpuledger.webhook.secret" . }}
{{- end -}}
{{/* Helm's own has a name of its own: Helm deletes it when it is wanted no more, and must not delete one of somebody's. */}}
{{- define "gpuledger.webhook.secret" -}}
gpuledger-webhook{{ if and (eq .Values.admission.webhook.certificate "generated") (not .Values.kustomize) }}-generated{{ end }}
{{- end -}}
