{{/*
Keys that the chart does not have, all at once, with what was probably meant. A schema can only say that a key is not
allowed, and Helm asks it first. So the schema lets every key through where it has x-closed, and this refuses them.
The schema itself refuses keys of objects in lists, and keys that have a pattern: `files` and `scheduler.versions`.
*/}}
{{- define "gpuledger.checks.keys" -}}
{{- $known := .Files.Get "files/keys.yaml" | fromYaml -}}
{{- $problems := list -}}
{{- $more := 0 -}}
{{- range $level, $names := $known.levels -}}
  {{- $part := $.Values -}}
  {{- range compact (splitList "." $level) -}}
    {{- if kindIs "map" $part -}}{{/* a null takes defaults away */}}
      {{- $part = get $part . -}}
    {{- end -}}
  {{- end -}}
  {{- if kindIs "map" $part -}}
    {{- range $key := keys $part | sortAlpha -}}
      {{- if not (has $key $names) -}}
        {{- if lt (len $problems) 40 -}}{{/* finding the nearest of a hundred settings takes 5 ms */}}
          {{- $problems = append $problems (include "gpuledger.keys.problem" (list $ $known $level $key)) -}}
        {{- else -}}
          {{- $more = add1 $more -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $more -}}
  {{- $problems = append $problems (printf "And %d more." $more) -}}
{{- end -}}
{{- if $problems -}}
  {{- fail (printf "\n\n%s\n" (join "\n" $problems)) -}}
  {{- include (join " " $problems) . -}}{{/* `helm lint` goes on after fail, but not without a template of this name */}}
{{- end -}}
{{- end -}}

{{/* What to say of a wrong key: include "gpuledger.keys.problem" (list . $known $level $key). */}}
{{- define "gpuledger.keys.problem" -}}
{{- $root := index . 0 -}}{{- $known := index . 1 -}}{{- $level := index . 2 -}}{{- $key := index . 3 -}}
{{- $chart := "" -}}{{/* where this chart's values are, if it is a part of another one */}}
{{- range $root.Template.BasePath | trimSuffix "/templates" | splitList "/charts/" | rest -}}
  {{- $chart = printf "%s%s." $chart . -}}
{{- end -}}
{{- $above := empty $level | ternary $chart (printf "%s%s." $chart $level) -}}
{{- $names := get $known.levels $level -}}
{{- $above }}{{ regexMatch `^\w[\w-]*$` $key | ternary $key (quote $key) }} is not a value of this chart
{{- with include "gpuledger.keys.meant" (list $known $level $key) -}}
  . Did you mean {{ contains ":" . | ternary . (print $chart .) }}?
{{- else -}}
  {{- if le (len $names) 8 -}}
    ; {{ trimSuffix "." $above }} has {{ join ", " $names }}.
  {{- else -}}
    ; {{ get (dict "settings" "docs/settings.md lists the settings" "monitoring.alerts" "docs/alerts.md lists the alerts") $level | default "`helm show values` lists them" }}.
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The path that was meant, or empty. One that is written as a single key, with dots, has to become levels. */}}
{{- define "gpuledger.keys.meant" -}}
{{- $known := index . 0 -}}{{- $level := index . 1 -}}{{- $key := index . 2 -}}
{{- $path := empty $level | ternary $key (printf "%s.%s" $level $key) -}}
{{- $steps := splitList "." $path -}}
{{- $plain := include "gpuledger.keys.plain" $key -}}
{{- if has (last $steps) (get $known.levels (initial $steps | join ".") | default list) -}}
  {{ join ": {" $steps }}: ...{{ repeat (initial $steps | len) "}" }}
{{- else if hasKey $known.elsewhere $path -}}
  {{ get $known.elsewhere $path }}
{{- else if hasKey $known.unique $plain -}}
  {{ get $known.unique $plain }}
{{- else -}}
  {{- with include "gpuledger.keys.nearest" (list $plain (get $known.levels $level)) -}}
    {{ empty $level | ternary . (printf "%s.%s" $level .) }}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* A key as it is compared. */}}
{{- define "gpuledger.keys.plain" -}}
{{- lower . | replace "-" "" | replace "_" "" | replace "." "" -}}
{{- end -}}

{{/*
The name that is most like a key: the same letters in another order, or else the one with the most pairs of letters in
common (Dice's coefficient). Empty if no name has 60 % of them.
*/}}
{{- define "gpuledger.keys.nearest" -}}
{{- $key := index . 0 | trunc 64 -}}{{- $names := index . 1 -}}
{{- $letters := splitList "" $key | sortAlpha | join "" -}}
{{- $pairs := list -}}
{{- range $at := until (len $key | add1 | int) -}}{{/* with both ends as letters */}}
  {{- $pairs = append $pairs (printf "^%s$" $key | substr $at (add $at 2 | int)) -}}
{{- end -}}
{{- $pairs = uniq $pairs -}}
{{- $nearest := "" -}}
{{- $most := 59 -}}
{{- range $at, $name := include "gpuledger.keys.plain" (join " " $names) | splitList " " -}}
  {{- $ends := printf "^%s$" $name -}}
  {{- $shared := 0 -}}
  {{- range $pairs -}}
    {{- if contains . $ends -}}{{- $shared = add1 $shared -}}{{- end -}}
  {{- end -}}
  {{- $alike := div (mul 200 $shared) (add (len $pairs) (len $name) 1) -}}
  {{- if eq $letters (splitList "" $name | sortAlpha | join "") -}}{{- $alike = 100 -}}{{- end -}}
  {{- if gt $alike $most -}}
    {{- $most = $alike -}}{{- $nearest = index $names $at -}}
  {{- end -}}
{{- end -}}
{{- $nearest -}}
{{- end -}}
