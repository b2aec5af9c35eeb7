{{/* What everything in the release's namespace is called, and what needs a cluster-wide name that only roles have. */}}
{{- define "oakum.name" -}}
{{- $usual := ternary .Release.Name (printf "%s-oakum" .Release.Name) (contains "oakum" .Release.Name) -}}
{{- .Values.fullnameOverride | default $usual | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "oakum.selector" -}}
app.kubernetes.io/name: oakum
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: manager
{{- end -}}

{{- define "oakum.labels" -}}
app.kubernetes.io/name: oakum
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "oakum.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the certificate, where the manager does not make it itself. */}}
{{- define "oakum.certificate" -}}
{{- if eq .Values.certificates.mode "provided" -}}
{{ required "certificates.provided.secretName: must name the Secret with tls.crt and tls.key" .Values.certificates.provided.secretName }}
{{- else -}}
{{ include "oakum.name" . }}-webhook
{{- end -}}
{{- end -}}

{{/* The Secret with the authorities of the certificates that the manager makes itself. */}}
{{- define "oakum.authorities" -}}
{{ include "oakum.name" . }}-webhook-ca
{{- end -}}
