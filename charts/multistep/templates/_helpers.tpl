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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of what `helm test` makes: not the operator's, which its Service and policies select. */}}
{{- define "multistep.testLabels" -}}
{{- $labels := include "multistep.labels" . | fromYaml -}}
{{- merge (dict "app.kubernetes.io/name" (printf "%s-test" (include "multistep.name" .)) "app.kubernetes.io/component" "test") $labels | toYaml -}}
{{- end -}}

{{/* Whether all replicas reach the results' volume from any node. */}}
{{- define "multistep.sharedVolume" -}}
{{- has "ReadWriteMany" .Values.results.persistence.accessModes | ternary "true" "" -}}
{{- end -}}

{{/* A setting as its variable has it: text as it is, all else as JSON (numbers without an exponent). */}}
{{- define "multistep.variable" -}}
{{- kindIs "string" . | ternary . (toJson .) -}}
{{- end -}}

{{- define "multistep.testNamespace" -}}
{{- first (append .Values.namespaces .Release.Namespace) -}}
{{- end -}}

{{/* What the schema cannot say in words that help. */}}
{{- define "multistep.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.results.persistence.enabled) -}}
{{- fail "replicas: more than 1 need results.persistence.enabled, on a volume that all of them reach" -}}
{{- end -}}
{{- range $index, $name := .Values.namespaces -}}
{{- if not (and (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $name) (le (len $name) 63)) -}}
{{- fail (printf "namespaces[%d]: %q cannot be a namespace: lower-case letters, digits and hyphens, at most 63" $index $name) -}}
{{- end -}}
{{- end -}}
{{- range $field, $size := dict "results.persistence.size" .Values.results.persistence.size "tmp.sizeLimit" .Values.tmp.sizeLimit -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([KMGTPE]i|[kMGTPE])?$" $size) -}}
{{- fail (printf "%s: %q is no quantity: write a number and a unit, such as 10Gi or 500Mi" $field $size) -}}
{{- end -}}
{{- end -}}
{{- with .Values.results.store -}}
{{- if and .url (not (regexMatch "^(s3|gs|az)://[^/]" .url)) -}}
{{- fail (printf "results.store.url: %q is no object store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX" .url) -}}
{{- end -}}
{{- if and .endpoint (not (regexMatch "^https?://[^/]" .endpoint)) -}}
{{- fail (printf "results.store.endpoint: %q is no address: write https://HOST:PORT" .endpoint) -}}
{{- end -}}
{{- range $name, $value := omit . "url" -}}
{{- if and $value (not $.Values.results.store.url) -}}
{{- fail (printf "results.store.%s: there is no store: set results.store.url, too" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "endpoint" "region" -}}
{{- if and (get $.Values.results.store $name) (not (hasPrefix "s3://" $.Values.results.store.url)) -}}
{{- fail (printf "results.store.%s: it is for s3:// alone, and results.store.url is %q" $name $.Values.results.store.url) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^([0-9]+(ms|s|m|h))*$" .Values.metrics.podMonitor.interval) -}}
{{- fail (printf "metrics.podMonitor.interval: %q is no duration: write 30s or 1m, or nothing" .Values.metrics.podMonitor.interval) -}}
{{- end -}}
{{- if and .Values.trials.egressPolicy.enabled (not .Values.namespaces) -}}
{{- fail "trials.egressPolicy.enabled: name the namespaces of the trials in `namespaces`; a chart cannot make policies everywhere" -}}
{{- end -}}
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
  verbs: [get, list, watch, create, patch, delete] # create, patch: for sweeps; delete: ttlSecondsAfterFinished
- apiGroups: [multistep.dev]
  resources: [trialsweeps]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [multistep.dev]
  resources: [multisteptrials/status, trialsweeps/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods/exec]
  verbs: [get, create] # websocket clients need get, SPDY ones create; newer API servers ask for both
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create] # create: the tasks of sweeps with tasksFrom
{{- if .Values.rbac.secrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- if .Values.trials.networkPolicyEnforced }}
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
