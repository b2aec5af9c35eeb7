{{/*
The webhooks or policies in one file of config/, for this release. Takes a dict:
  root      $
  file      their path
  settings  of the backend that they guard; nothing for those that guard Oakum itself
  strict    whether validating webhooks refuse while no manager answers
  mutates   whether mutating webhooks are wanted
*/}}
{{- define "oakum.guards" -}}
{{- $settings := .settings | default dict -}}
{{- $effects := $settings.rules | default dict -}}
{{- range $text := regexSplit "(?m)^---$" (.root.Files.Get .file) -1 -}}
  {{- $object := fromYaml $text -}}
  {{- $rule := dig "metadata" "name" "" $object | splitList "." | first -}}
  {{- $effect := get $effects $rule -}}
  {{- $wanted := or $.mutates (ne (toString $object.kind) "MutatingWebhookConfiguration") -}}
  {{- if and $object.kind $wanted (ne $effect "Off") -}}
    {{- $metadata := dict "name" $object.metadata.name "labels" (include "oakum.labels" $.root | fromYaml) -}}
    {{- $_ := set $object "metadata" $metadata -}}
    {{- if hasSuffix "WebhookConfiguration" $object.kind -}}
      {{- if eq $.root.Values.certificates.mode "cert-manager" -}}
        {{- $_ := set $metadata "annotations" (dict "cert-manager.io/inject-ca-from" (printf "%s/%s" $.root.Release.Namespace (include "oakum.certificate" $.root))) -}}
      {{- end -}}
      {{- range $webhook := $object.webhooks -}}
        {{- $_ := set $webhook.clientConfig.service "name" (include "oakum.name" $.root) -}}
        {{- $_ := set $webhook.clientConfig.service "namespace" $.root.Release.Namespace -}}
        {{- if eq $.root.Values.certificates.mode "provided" -}}
          {{- $_ := set $webhook.clientConfig "caBundle" (required "certificates.provided.caBundle: must hold the CA that signed the certificate, in PEM" $.root.Values.certificates.provided.caBundle | b64enc) -}}
        {{- end -}}
        {{- if and $.strict (eq $object.kind "ValidatingWebhookConfiguration") -}}
          {{- $_ := set $webhook "failurePolicy" "Fail" -}}
        {{- end -}}
        {{- range $expression := dig "namespaceSelector" "matchExpressions" list $webhook -}}
          {{- $_ := set $expression "values" (append $.root.Values.config.finalizers.pods.excludedNamespaces $.root.Release.Namespace | uniq) -}}
        {{- end -}}
      {{- end -}}
    {{- else if eq $object.kind "ValidatingAdmissionPolicyBinding" -}}
      {{- if or (eq $effect "Warn") (eq (toString $settings.mode) "Warn") -}}
        {{- $_ := set $object.spec "validationActions" (list "Warn" "Audit") -}}
      {{- else if eq $effect "Deny" -}}
        {{- $_ := set $object.spec "validationActions" (list "Deny") -}}
      {{- end -}}
    {{- end }}
---
{{ toYaml $object }}
  {{- end -}}
{{- end -}}
{{- end -}}
