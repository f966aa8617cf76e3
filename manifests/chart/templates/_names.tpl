{{/* One release a cluster, so that names are the same wherever DLJob is: dljob-operator, dljob-ca, … */}}

{{/* The labels of an object: include "dljob.labels" (list . "operator") */}}
{{- define "dljob.labels" -}}
{{- $root := index . 0 -}}
{{ include "dljob.selector" (index . 1) }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* By which labels the pods of a component are known; never changed, because a Deployment cannot. */}}
{{- define "dljob.selector" -}}
app.kubernetes.io/name: dljob
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* The name of an image: include "dljob.image" (list . .Values.image) */}}
{{- define "dljob.image" -}}
{{- $image := index . 1 -}}
{{- $tagged := printf "%s:%s" $image.repository ($image.tag | default (index . 0).Chart.AppVersion) -}}
{{- empty $image.digest | ternary $tagged (printf "%s@%s" $image.repository $image.digest) -}}
{{- end -}}

{{/* The name of kube-scheduler's image, by default of the version that the cluster has. */}}
{{- define "dljob.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{- $tagged := printf "%s:%s" $image.repository ($image.tag | default $version) -}}
{{- empty $image.digest | ternary $tagged (printf "%s@%s" $image.repository $image.digest) -}}
{{- end -}}

{{/* How many operators: one if its store is a file, which one process writes, else two. */}}
{{- define "dljob.replicas" -}}
{{- if kindIs "invalid" .Values.replicas -}}
{{- eq .Values.store.type "sqlite" | ternary 1 2 -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}

{{/* As whom the operator is known to the API server. */}}
{{- define "dljob.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:dljob-operator
{{- end -}}

{{/* The taint of the pool, and the beginning of the names of runtime classes that show its GPUs. */}}
{{- define "dljob.taint" -}}
{{- dig "pods" "taint" "dljob.io/pool" .Values.settings -}}
{{- end -}}
{{- define "dljob.runtimeClass" -}}
{{- dig "pods" "runtimeClass" "nvidia" .Values.settings | default "nvidia" -}}
{{- end -}}
