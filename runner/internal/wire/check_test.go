package wire

import (
	"encoding/json"
	"os"
	"testing"
)

// The operator checks the same requests by the same rules (tests/unit/runner_client/test_valid_requests.py).
func TestRequestsThatTheOperatorMaySendAreAccepted(t *testing.T) {
	text, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		What    string          `json:"what"`
		Valid   bool            `json:"valid"`
		Request json.RawMessage `json:"request"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if err := accepted(row.Request); (err == nil) != row.Valid {
			t.Errorf("%s: %v", row.What, err)
		}
	}
}

func accepted(payload []byte) error {
	var op Op
	if err := json.Unmarshal(payload, &op); err != nil {
		return err
	}
	type checked interface{ Check() error }
	kinds := map[string]checked{
		"start": &Start{}, "healthcheck": &Healthcheck{}, "reset": &Reset{}, "download": &Download{}, "survey": &Survey{},
	}
	request := kinds[op.Op]
	if err := Decode(payload, request); err != nil {
		return err
	}
	if op.Op != "download" && op.Op != "survey" {
		if err := op.CheckID(); err != nil {
			return err
		}
	}
	return request.Check()
}
