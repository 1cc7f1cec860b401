{{/* Writes the file from which the agent reads its node's cards. Their UUIDs come from the node's name. */}}
{{- define "gpuledger.simulatedCards" -}}
{{- $cards := .Values.agent.simulatedCards -}}
- name: simulated-cards
  image: {{ include "gpuledger.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [python3, -c]
  args:
    - |
      import json, os, pathlib, uuid
      node = uuid.uuid5(uuid.NAMESPACE_DNS, os.environ["NODE_NAME"])
      cards = [
          {"uuid": f"GPU-{uuid.uuid5(node, str(index))}", "memoryMiB": {{ $cards.memoryMiB }}, "model": {{ quote $cards.model }}}
          for index in range({{ $cards.number }})
      ]
      # JSON is YAML, too.
      pathlib.Path("/var/lib/gpuledger/cards.yaml").write_text(json.dumps({"cards": cards}))
  env:
    - name: NODE_NAME
      valueFrom:
        fieldRef: {fieldPath: spec.nodeName}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - {name: state, mountPath: /var/lib/gpuledger}
{{- end -}}
