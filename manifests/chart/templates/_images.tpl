{{- define "gpuledger.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* kube-scheduler of the cluster's minor version: by the table, else exactly the cluster's, without a vendor's suffix. */}}
{{- define "gpuledger.scheduler.image" -}}
{{- $cluster := semver .Capabilities.KubeVersion.Version -}}
{{- $minor := printf "%d.%d" $cluster.Major $cluster.Minor -}}
{{- $own := printf "v%s.%d" $minor $cluster.Patch -}}
{{- $image := .Values.scheduler.image -}}
{{ $image.repository }}:{{ $image.tag | default (get .Values.scheduler.versions $minor) | default $own }}
{{- end -}}
