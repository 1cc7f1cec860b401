{{/*
Brings HAMi-core's library from its image to the agent, which checks and installs it. It only copies, so it needs nothing
of its node. A copy that ends in the middle is made anew, and the agent starts only after it.
*/}}
{{- define "gpuledger.hamiCore" -}}
- name: hami-core
  image: {{ .Values.hamiCore.image }}
  imagePullPolicy: {{ .Values.hamiCore.pullPolicy }}
  command: [sh, -ec]
  args:
    - |
      rm -f /hami-core/*
      cp {{ .Values.hamiCore.directory }}/libvgpu.so* /hami-core/
  env:
    # Its image asks NVIDIA's runtime for all cards.
    - name: NVIDIA_VISIBLE_DEVICES
      value: void
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  securityContext:
    runAsUser: 65534
    runAsGroup: 65534
    runAsNonRoot: true
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - {name: hami-core-image, mountPath: /hami-core}
    # In place of the account's token, which Kubernetes leaves out then: the image is not ours.
    - {name: no-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}
