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
    secretName: gpuledger-webhook
{{- end -}}
