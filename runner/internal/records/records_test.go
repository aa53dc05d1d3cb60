package records

import (
	"context"
	"sync"
	"testing"
	"time"

	"multistep.dev/runner/internal/wire"
)

func TestOnceIsOnce(t *testing.T) {
	store, done := NewStore(), 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			record, err := store.Once("id", "reset", func() (any, *wire.Error) {
				done++ // not concurrent: the race detector checks this
				time.Sleep(time.Millisecond)
				return done, nil
			})
			if err != nil || record.Result != 1 {
				t.Error(record, err)
			}
		})
	}
	all.Wait()
	if done != 1 {
		t.Error(done)
	}
}

func TestWhatFailsMayBeTriedAgain(t *testing.T) {
	store := NewStore()
	if _, err := store.Once("id", "upload", func() (any, *wire.Error) { return nil, wire.Errorf("Upload", "x") }); err == nil {
		t.Error("no error")
	}
	if len(store.All()) != 0 {
		t.Error(store.All())
	}
	if record, err := store.Once("id", "upload", func() (any, *wire.Error) { return 1, nil }); err != nil || record.Result != 1 {
		t.Error(record, err)
	}
	if _, _, err := store.Start("id", "start"); err == nil || err.Code != wire.CodeConflict {
		t.Error(err)
	}
}

func TestWaitingEndsWithTheRecordOrWithTheTime(t *testing.T) {
	store := NewStore()
	store.Start("id", "start")
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if record, err := store.Wait(ctx, "id"); err != nil || record.State != running {
		t.Error(record, err)
	}
	go store.End("id", "result")
	if record, err := store.Wait(context.Background(), "id"); err != nil || record.State != done || record.EndedAt == nil {
		t.Error(record, err)
	}
	if !store.entries["id"].record.Acknowledged && store.Settled() {
		t.Error("nobody fetched it")
	}
}
