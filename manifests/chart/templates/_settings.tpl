{{/* The settings file of the operator: what was given as settings, and what other values say. */}}
{{- define "dljob.settings" -}}
{{- $image := .Values.sidecar.image -}}
{{- $pods := dict "image" (include "dljob.image" (list . $image)) -}}
{{- with $image.pullPolicy }}{{ $_ := set $pods "pullPolicy" . }}{{ end -}}
{{- with $image.pullSecrets }}{{ $_ := set $pods "pullSecrets" . }}{{ end -}}
{{- $own := dict "pods" $pods "store" "/var/lib/dljob/profiles.db" -}}
{{- with .Values.namespaces }}{{ $_ := set $own "watched" . }}{{ end -}}
{{- if include "dljob.holdsGpus" . }}
{{- $_ := set $own "pool" (dict "placeholder" (dict "priorityClass" "dljob-placeholder")) }}
{{- end -}}
{{- if .Values.metrics.protected }}{{ $_ := set $own "metrics" (dict "protected" true) }}{{ end -}}
{{- with .Values.notify.existingSecret }}{{ if .name }}
{{- $notify := dict "urlFile" "/etc/dljob-notify/url" }}
{{- if .tokenKey }}{{ $_ := set $notify "tokenFile" "/etc/dljob-notify/token" }}{{ end }}
{{- $_ := set $own "notify" $notify }}
{{- end }}{{ end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.settings) $own) -}}
{{- end -}}

{{/* Whether jobs are in the queues of Kueue: not empty if so. */}}
{{- define "dljob.inQueues" -}}
{{- if dig "kueue" "enabled" false .Values.settings }}true{{ end -}}
{{- end -}}

{{/* Whether placeholder pods hold GPUs, with the priority class of the chart: not empty if so. */}}
{{- define "dljob.holdsGpus" -}}
{{- $pool := dig "pool" dict .Values.settings -}}
{{- $isNamed := dig "placeholder" "priorityClass" "" $pool -}}
{{- if and (eq (dig "mode" "dedicated" $pool) "reserve") (not $isNamed) }}true{{ end -}}
{{- end -}}

{{/* Where the store is, if it is not the file of the settings. */}}
{{- define "dljob.storeVariables" -}}
{{- if eq .Values.store.type "mongodb" -}}
{{- $secret := .Values.store.mongodb.existingSecret -}}
# Where profiles and the history are kept{{ if $secret.optional }}; without it, in a file that ends with the pod{{ end }}.
- name: DLJOB_STORE
  valueFrom:
    secretKeyRef: {name: {{ $secret.name | default "dljob-store" }}, key: {{ $secret.key }}{{ if $secret.optional }}, optional: true{{ end }}}
{{- else if eq .Values.store.type "deployed" -}}
{{- $deployed := .Values.store.deployed -}}
# Where profiles and the history are kept.
- name: DLJOB_STORE
  value: mongodb://dljob-mongodb.{{ .Release.Namespace }}.svc:27017/dljob{{ if $deployed.auth }}?authSource=admin{{ end }}
{{- if $deployed.auth }}
- name: DLJOB_STORE_USERNAME
  valueFrom:
    secretKeyRef: {name: dljob-mongodb, key: username}
- name: DLJOB_STORE_PASSWORD
  valueFrom:
    secretKeyRef: {name: dljob-mongodb, key: password}
{{- end }}
{{- end -}}
{{- end -}}
