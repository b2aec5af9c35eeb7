{{/* The settings that were given. YAML reads the word Off as false, which is turned back. */}}
{{- define "oakum.settings" -}}
{{- $settings := deepCopy .Values.config -}}
{{- range $backend := $settings.backends -}}
  {{- if kindIs "bool" $backend.mode -}}{{- $_ := set $backend "mode" "Off" -}}{{- end -}}
  {{- range $rule, $effect := $backend.rules -}}
    {{- if kindIs "bool" $effect -}}{{- $_ := set $backend.rules $rule "Off" -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The configuration file: the settings, and what follows from the rest of the chart. */}}
{{- define "oakum.config" -}}
{{- $webhook := dict "port" .Values.ports.webhook -}}
{{- if eq .Values.certificates.mode "self-signed" -}}
  {{- $_ := set $webhook "selfSigned" (dict "secretName" (include "oakum.authorities" .) "serviceName" (include "oakum.name" .)) -}}
{{- end -}}
{{- $config := include "oakum.settings" . | fromYaml -}}
{{- $_ := set $config "apiVersion" "config.oakum.dev/v1alpha1" -}}
{{- $_ := set $config "kind" "Configuration" -}}
{{- $_ := set $config "namespace" .Release.Namespace -}}
{{- $_ := set $config "webhook" $webhook -}}
{{- $_ := set $config "metrics" (dict "bindAddress" (printf ":%v" .Values.ports.metrics)) -}}
{{- $_ := set $config "health" (dict "bindAddress" (printf ":%v" .Values.ports.health)) -}}
{{- toYaml $config -}}
{{- end -}}
