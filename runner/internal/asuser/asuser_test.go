package asuser

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/reap"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// reaper is the only Reaper of this process.
var reaper *reap.Reaper

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Arguments[1] {
		hang()
	}
	reaper = reap.New()
	os.Exit(m.Run())
}

// hang acts as a child that accepts its job and then neither reads nor exits.
func hang() {
	var work job
	read(frames.NewReader(os.Stdin), &work)
	answer(reply{Sources: []wire.SourceType{{Type: "file"}}})
	time.Sleep(time.Hour)
}

// takesGracePeriod fails the test if do ends before the grace period. Without a kill, do would take as long as the child, an hour.
func takesGracePeriod(t *testing.T, do func()) {
	t.Helper()
	started := time.Now()
	do()
	if took := time.Since(started); took < cancelGracePeriod {
		t.Error(took)
	}
}

func noneLeft(t *testing.T) {
	t.Helper()
	if left := reaper.Started(); len(left) != 0 {
		t.Error(left)
	}
}

func TestAChildThatHangsIsKilled(t *testing.T) {
	user := users.User{Own: true}
	defer func(former time.Duration) { cancelGracePeriod = former }(cancelGracePeriod)
	cancelGracePeriod = 500 * time.Millisecond
	t.Run("when its upload is closed", func(t *testing.T) {
		upload, err := NewUpload(context.Background(), reaper, "/target", user)
		if err != nil {
			t.Fatal(err)
		}
		takesGracePeriod(t, func() { upload.Close() })
		noneLeft(t)
	})
	for what, use := range map[string]func(*Upload) error{
		"when its upload is cancelled":           func(u *Upload) error { return u.Merge() },
		"when it reads nothing and is cancelled": func(u *Upload) error { return u.Unpack(bytes.NewReader(make([]byte, 1<<20))) },
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			upload, err := NewUpload(ctx, reaper, "/target", user)
			if err != nil {
				t.Fatal(err)
			}
			takesGracePeriod(t, func() {
				cancel()
				if err := use(upload); err == nil || !strings.Contains(err.Error(), "ended, or was killed") {
					t.Error(err)
				}
				upload.Close()
			})
			noneLeft(t)
		})
	}
	t.Run("when its download is closed", func(t *testing.T) {
		download, err := OpenDownload(context.Background(), reaper, nil, user)
		if err != nil || len(download.Types()) != 1 {
			t.Fatal(err)
		}
		cancelGracePeriod = time.Hour
		download.Close()
		noneLeft(t)
	})
}

func TestStartingManyLeaksNoDescriptor(t *testing.T) {
	count := func() int {
		open, _ := filepath.Glob("/proc/self/fd/*")
		return len(open)
	}
	use := func() {
		download, err := OpenDownload(context.Background(), reaper, nil, users.User{Own: true})
		if err != nil {
			t.Fatal(err)
		}
		download.Close()
	}
	use()
	before := count()
	for range 10 {
		use()
	}
	if after := count(); after > before {
		t.Error(before, after)
	}
}
