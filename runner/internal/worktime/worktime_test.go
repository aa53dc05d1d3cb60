package worktime

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a stream; its value is the time that each read and write takes.
type slow time.Duration

func (s slow) Write(p []byte) (int, error) { return s.Read(p) }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(time.Duration(s))
	return len(p), nil
}

func TestWorkEndsAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, _, cancel := Limit(t.Context(), time.Minute)
		defer cancel()
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("ended before its limit")
		}
		time.Sleep(1)
		synctest.Wait()
		if context.Cause(ctx) != ErrExceeded {
			t.Error(context.Cause(ctx))
		}
	})
}

func TestTimeInReadsAndWritesDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, clock, cancel := Limit(t.Context(), time.Minute)
		defer cancel()
		other := make(chan struct{})
		time.Sleep(20 * time.Second)
		go func() { // reads at the same time as the write below
			clock.Reader(slow(2 * time.Hour)).Read(nil)
			close(other)
		}()
		clock.Writer(slow(time.Hour)).Write(nil)
		<-other
		time.Sleep(40*time.Second - 1)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("counted what is no work")
		}
		time.Sleep(1)
		synctest.Wait()
		if context.Cause(ctx) != ErrExceeded {
			t.Error("counted no work between and after waits")
		}
	})
}

func TestTheContextEndsWithItsParentAndAtCancel(t *testing.T) {
	parent, end := context.WithCancel(t.Context())
	ctx, _, cancel := Limit(parent, time.Hour)
	end()
	if ctx.Err() == nil {
		t.Error("outlives its parent")
	}
	cancel()
	ctx, _, cancel = Limit(t.Context(), time.Hour)
	cancel()
	if ctx.Err() == nil || context.Cause(ctx) == ErrExceeded {
		t.Error(context.Cause(ctx))
	}
}
