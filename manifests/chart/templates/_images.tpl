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

{{/*
What native_gangs needs of kube-scheduler, by its minor version. On 1.36, it would try a group that waits hundreds of
times a second, were it not for SchedulerPopFromBackoffQ=false.
*/}}
{{- define "gpuledger.scheduler.gates" -}}
{{- if eq (include "gpuledger.setting" (list . "native_gangs")) "true" -}}
{{- $minor := include "gpuledger.scheduler.image" . | regexFind ":v?1[.][0-9]+" | regexFind "[0-9]+$" | int -}}
{{- if lt $minor 36 -}}
  {{- fail (printf "\n\nsettings.native_gangs needs kube-scheduler 1.36 or newer, and this is %s.\n" (include "gpuledger.scheduler.image" .)) -}}
{{- end -}}
GenericWorkload=true{{ if eq $minor 36 }},GangScheduling=true,SchedulerPopFromBackoffQ=false{{ end }}
{{- end -}}
{{- end -}}
