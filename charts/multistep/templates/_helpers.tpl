{{- define "multistep.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name if it contains `multistep`, otherwise RELEASE-multistep. */}}
{{- define "multistep.fullname" -}}
{{- $name := include "multistep.name" . -}}
{{- $default := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $default | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of cluster-scoped objects. It contains the namespace, because several namespaces may have releases of the same name. */}}
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

{{/* Labels of the objects of `helm test`. They differ from the operator's labels, so that its Service and policies do not select these objects. */}}
{{- define "multistep.testLabels" -}}
{{- $labels := include "multistep.labels" . | fromYaml -}}
{{- merge (dict "app.kubernetes.io/name" (printf "%s-test" (include "multistep.name" .)) "app.kubernetes.io/component" "test") $labels | toYaml -}}
{{- end -}}

{{/* Name of the gateway's objects: at most 52 characters, because a StatefulSet's pods have a label with its name and a hash. */}}
{{- define "multistep.gatewayName" -}}
{{- printf "%s-gateway" (include "multistep.fullname" . | trunc 44 | trimSuffix "-") -}}
{{- end -}}

{{/* Labels that select the gateway's pods. They differ from the operator's labels, so that its Service and policies do not select these pods. */}}
{{- define "multistep.gatewaySelectorLabels" -}}
app.kubernetes.io/name: {{ printf "%s-gateway" (include "multistep.name" . | trunc 55 | trimSuffix "-") }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "multistep.gatewayLabels" -}}
{{- $own := merge (dict "app.kubernetes.io/component" "gateway") (include "multistep.gatewaySelectorLabels" . | fromYaml) -}}
{{- merge $own (include "multistep.labels" . | fromYaml) | toYaml -}}
{{- end -}}

{{- define "multistep.gatewaySecretName" -}}
{{- .Values.gateway.existingSecret | default (include "multistep.gatewayName" .) -}}
{{- end -}}

{{/* The host of the gateway's URLs. */}}
{{- define "multistep.gatewayHost" -}}
{{- printf "%s.%s.svc" (include "multistep.gatewayName" .) .Release.Namespace -}}
{{- end -}}

{{/* "true" if the results volume can be mounted on several nodes, else "". */}}
{{- define "multistep.sharedVolume" -}}
{{- has "ReadWriteMany" .Values.results.persistence.accessModes | ternary "true" "" -}}
{{- end -}}

{{/* The value of a setting's environment variable: a string unchanged, any other type as JSON (numbers without an exponent). */}}
{{- define "multistep.variable" -}}
{{- kindIs "string" . | ternary . (toJson .) -}}
{{- end -}}

{{- define "multistep.testNamespace" -}}
{{- first (append .Values.namespaces .Release.Namespace) -}}
{{- end -}}

{{/* Checks of values for which the schema has no clear error messages. */}}
{{- define "multistep.check" -}}
{{- if and (gt (int .Values.replicaCount) 1) (not .Values.results.persistence.enabled) -}}
{{- fail "replicaCount: more than 1 needs results.persistence.enabled and a volume that all replicas can mount" -}}
{{- end -}}
{{- range $index, $name := .Values.namespaces -}}
{{- if not (and (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $name) (le (len $name) 63)) -}}
{{- fail (printf "namespaces[%d]: %q is not a valid namespace: use lower-case letters, digits and hyphens, at most 63 characters" $index $name) -}}
{{- end -}}
{{- end -}}
{{- range $field, $size := dict "results.persistence.size" .Values.results.persistence.size "tmp.sizeLimit" .Values.tmp.sizeLimit "tasks.sizeLimit" .Values.tasks.sizeLimit "builds.storage" .Values.builds.storage "gateway.persistence.size" .Values.gateway.persistence.size -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([KMGTPE]i|[kMGTPE])?$" $size) -}}
{{- fail (printf "%s: %q is not a quantity: write a number and a unit, such as 10Gi or 500Mi" $field $size) -}}
{{- end -}}
{{- end -}}
{{- with .Values.results.store -}}
{{- if and .url (not (regexMatch "^(s3|gs|az)://[^/]" .url)) -}}
{{- fail (printf "results.store.url: %q is not an object store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX" .url) -}}
{{- end -}}
{{- if and .endpoint (not (regexMatch "^https?://[^/]" .endpoint)) -}}
{{- fail (printf "results.store.endpoint: %q is not a URL: write https://HOST:PORT" .endpoint) -}}
{{- end -}}
{{- range $name, $value := omit . "url" -}}
{{- if and $value (not $.Values.results.store.url) -}}
{{- fail (printf "results.store.%s: results.store.url is empty: set it, too" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "endpoint" "region" -}}
{{- if and (get $.Values.results.store $name) (not (hasPrefix "s3://" $.Values.results.store.url)) -}}
{{- fail (printf "results.store.%s: only s3:// stores have it, but results.store.url is %q" $name $.Values.results.store.url) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $url := .Values.gateway.baseURLs -}}
{{- if not (regexMatch ($.Values.gateway.settings.plainUpstreams | default false | ternary "^https?://[^/]" "^https://[^/]") $url) -}}
{{- fail (printf "gateway.baseURLs.%s: %q is not a URL with TLS: write https://HOST/PATH" $name $url) -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^([0-9]+(ms|s|m|h))*$" .Values.metrics.podMonitor.interval) -}}
{{- fail (printf "metrics.podMonitor.interval: %q is not a duration: write 30s or 1m, or leave it empty" .Values.metrics.podMonitor.interval) -}}
{{- end -}}
{{- if and .Values.trials.egressPolicy.enabled (not .Values.namespaces) -}}
{{- fail "trials.egressPolicy.enabled: `namespaces` is empty: list the trials' namespaces, as a chart cannot create policies in all namespaces" -}}
{{- end -}}
{{- end -}}

{{- define "multistep.serviceAccountName" -}}
{{- $default := .Values.serviceAccount.create | ternary (include "multistep.fullname" .) "default" -}}
{{- .Values.serviceAccount.name | default $default -}}
{{- end -}}

{{- define "multistep.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "multistep.builderImage" -}}
{{- .Values.builds.image | default (printf "%s-builder:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) -}}
{{- end -}}

{{- define "multistep.buildsNamespace" -}}
{{- .Values.builds.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "multistep.claimName" -}}
{{- .Values.results.persistence.existingClaim | default (printf "%s-results" (include "multistep.fullname" .)) -}}
{{- end -}}

{{/* Rules of the operator's Role in the namespaces whose trials it runs. */}}
{{- define "multistep.rules" -}}
- apiGroups: [multistep.dev]
  resources: [multisteptrials]
  verbs: [get, list, watch, create, patch, delete] # create: trials of sweeps, reference trials; patch: trials of sweeps; delete: ttlSecondsAfterFinished
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
  verbs: [get, create] # WebSocket clients need get, SPDY clients need create; newer API servers require both
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create] # create: a sweep's resolved tasks and its branches, the history's address
{{- if .Values.rbac.secrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- if eq .Values.trials.egress "NetworkPolicy" }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create] # not delete: Kubernetes deletes the policies with their trials
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
