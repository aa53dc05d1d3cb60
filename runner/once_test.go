package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"multistep.dev/runner/internal/frames"
)

// once runs `runner once` with the requests, and returns its responses.
func once(t *testing.T, state string, requests ...map[string]any) []map[string]any {
	t.Helper()
	var input, output bytes.Buffer
	for _, request := range append([]map[string]any{{"op": "hello", "protocols": []int{4}}}, requests...) {
		if err := frames.WriteJSON(&input, frames.JSON, request); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(program, "once", "--state", state, "--id", "1/a/hook")
	command.Stdin, command.Stdout, command.Stderr = &input, &output, os.Stderr
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	var responses []map[string]any
	for reader := frames.NewReader(&output); ; {
		if _, _, err := reader.Next(); err != nil {
			return responses
		}
		payload, err := reader.Payload()
		response := map[string]any{}
		if err := json.Unmarshal(payload, &response); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		responses = append(responses, response)
	}
}

func hook(script string) []map[string]any {
	start := map[string]any{"op": "start", "id": "1/a/hook", "argv": []string{"sh", "-c", script}, "tailBytes": 100}
	return []map[string]any{start, {"op": "wait", "id": "1/a/hook", "timeoutSeconds": 60}}
}

func resultOf(t *testing.T, responses []map[string]any) map[string]any {
	t.Helper()
	record, _ := responses[len(responses)-1]["record"].(map[string]any)
	result, _ := record["result"].(map[string]any)
	if record["state"] != "done" {
		t.Fatal(responses)
	}
	return result
}

func TestACommandInAServicesContainerRunsOnce(t *testing.T) {
	state, file := filepath.Join(t.TempDir(), "records"), filepath.Join(t.TempDir(), "ran")
	for range 2 {
		result := resultOf(t, once(t, state, hook("echo ran | tee -a "+file+"; exit 3")...))
		if result["exitCode"] != 3.0 || result["tail"] != "ran\n" {
			t.Error(result)
		}
	}
	if content, _ := os.ReadFile(file); string(content) != "ran\n" {
		t.Errorf("it ran more than once: %q", content)
	}
}

func TestACommandRunsToItsEndIfItsSessionBreaks(t *testing.T) {
	state := filepath.Join(t.TempDir(), "records")
	once(t, state, hook("sleep 0.5; echo ended")[:1]...) // the session ends before the command does
	if result := resultOf(t, once(t, state, hook("echo again")...)); result["tail"] != "ended\n" {
		t.Error(result)
	}
}

func TestACommandWhoseRunnerWasKilledIsNotRunAgain(t *testing.T) {
	// The record file while the command runs; a record that was written in part (runner killed, disk full); contents by a service.
	for _, left := range []string{"\n", `{"id":"1/a/hook","op":"start","state":"do`, `[]`, `{"id":"another","op":"start"}`, `{"op":"note"}`} {
		state := filepath.Join(t.TempDir(), "records")
		once(t, state) // a session without a command creates an empty record file
		names, _ := filepath.Glob(filepath.Join(state, "*"))
		if len(names) != 1 {
			t.Fatal(names)
		}
		if err := os.WriteFile(names[0], []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		result := resultOf(t, once(t, state, hook("echo again")...))
		if text, _ := json.Marshal(result["error"]); !strings.Contains(string(text), "Interrupted") {
			t.Error(left, result)
		}
	}
}

func TestASessionThatStartsNothingLeavesNoRecord(t *testing.T) {
	state := filepath.Join(t.TempDir(), "records")
	once(t, state)
	if result := resultOf(t, once(t, state, hook("echo first")...)); result["tail"] != "first\n" {
		t.Error(result)
	}
}
