package files

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"multistep.dev/runner/internal/wire"
)

// A caller that gets no answer asks again, and the search would start again, forever.
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
