package files

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"multistep.dev/runner/internal/wire"
)

// The search must end before the caller's timeout: after it, the caller repeats the request, which starts the search again,
// forever.
func TestASearchForLargeFilesEndsInTime(t *testing.T) {
	defer func(former time.Duration) { searchTimeout = former }(searchTimeout)
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "large"), make([]byte, 10), 0o644); err != nil {
		t.Fatal(err)
	}
	sources := []wire.Source{{Path: directory}}
	if found := Large(sources, 10, 5); len(found) != 1 || found[0].Path != "large" {
		t.Error(found)
	}
	searchTimeout = 0
	if found := Large(sources, 10, 5); len(found) != 0 {
		t.Error(found)
	}
}
