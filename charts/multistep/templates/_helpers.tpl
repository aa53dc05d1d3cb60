{{- define "multistep.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* `multistep` for a release of that name, else RELEASE-multistep. */}}
{{- define "multistep.fullname" -}}
{{- $name := include "multistep.name" . -}}
{{- $default := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $default | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Names of objects of the whole cluster: two releases in two namespaces must not share them. */}}
{{- define "multistep.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "multistep.fullname" .) -}}
{{- end -}}

{{- define "multistep.selectorLabels" -}}
app.kubernetes.io/name: {{ include "multistep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "multistep.labels" -}}
{{ include "multistep.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "multistep.serviceAccountName" -}}
{{- $default := .Values.serviceAccount.create | ternary (include "multistep.fullname" .) "default" -}}
{{- .Values.serviceAccount.name | default $default -}}
{{- end -}}

{{- define "multistep.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "multistep.claimName" -}}
{{- .Values.results.persistence.existingClaim | default (printf "%s-results" (include "multistep.fullname" .)) -}}
{{- end -}}

{{/* Everything the operator does in a namespace whose trials it runs; nothing more. */}}
{{- define "multistep.rules" -}}
- apiGroups: [multistep.dev]
  resources: [multisteptrials]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [multistep.dev]
  resources: [multisteptrials/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods/exec]
  verbs: [get, create] # websocket clients need get, SPDY ones create; newer API servers ask for both
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
{{- if .Values.rbac.secrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- if .Values.networkPolicies.enforced }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create] # they go with their trials
{{- end }}
{{- if eq .Values.drain "Wait" }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, delete]
{{- end }}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
