{{/* What the pod-security level "restricted" asks for, and a root that can only be read. */}}
{{- define "dljob.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.user }}
runAsUser: {{ int . }}
{{- end }}
{{- with .Values.podSecurity.group }}
runAsGroup: {{ int . }}
fsGroup: {{ int . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "dljob.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where pods run, and how important they are: include "dljob.placement" .Values */}}
{{- define "dljob.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The Secrets with which images are pulled: include "dljob.pullSecrets" .Values.image.pullSecrets */}}
{{- define "dljob.pullSecrets" -}}
{{- with . }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
