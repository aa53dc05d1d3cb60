{{- define "multistep.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/*
A trial of one step in the operator's image, which nodes already have.
*/}}
{{- define "multistep.testTrial" -}}
apiVersion: multistep.dev/v1alpha1
kind: MultiStepTrial
metadata:
  name: {{ include "multistep.fullname" . }}-test-{{ randAlphaNum 6 | lower }}
  namespace: {{ include "multistep.testNamespace" . }}
  labels: {{- include "multistep.testLabels" . | nindent 4 }}
spec:
  agent:
    name: oracle
  activeDeadlineSeconds: {{ .Values.test.timeoutSeconds }}
  environment:
    image: {{ include "multistep.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    podTemplate:
      spec:
        {{- with .Values.imagePullSecrets }}
        imagePullSecrets: {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with .Values.nodeSelector }}
        nodeSelector: {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with .Values.tolerations }}
        tolerations: {{- toYaml . | nindent 10 }}
        {{- end }}
        containers:
          - name: main
            securityContext:
              runAsUser: 0 # not the image's user
  task:
    name: helm-test
    inline:
      config:
        steps:
          - name: one
      files:
        steps/one/instruction.md: Do nothing much.
        steps/one/solution/solve.sh: |
          #!/bin/sh
          echo done > /tmp/work
        steps/one/tests/test.sh: |
          #!/bin/sh
          grep -qx done /tmp/work && reward=1 || reward=0
          echo "$reward" > /logs/verifier/reward.txt
{{- end -}}
