package fleet

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestOrder: what comes is in order as soon as all senders are known to be behind it, or has waited.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		o := NewOrder(time.Second, func(v string, late bool) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(v, " ", late))
			return nil
		})
		want := func(items ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, items) {
				t.Errorf("got %q, want %q", got, items)
			}
			got = nil
		}
		for _, s := range []string{"a", "b", "c"} {
			o.Begin(s)
		}
		_ = o.Put("a", 1, "a1")
		time.Sleep(time.Minute) // b and c have not begun
		want()
		_ = o.Advance("b", 2)
		want()
		_ = o.Advance("c", 2)
		want("a1 false")
		_ = o.Put("a", 10, "a10")
		_ = o.Put("b", 5, "b5")
		want()
		_ = o.Put("c", 7, "c7")
		want("b5 false")
		_ = o.End("b")
		want("c7 false")
		_ = o.Put("c", 9, "c9")
		want("c9 false")
		time.Sleep(2 * time.Second)
		want("a10 false")
		_ = o.Put("c", 8, "c8")
		want("c8 true")
		_ = o.Put("a", 30, "a30")
		_ = o.Put("a", 20, "a20")
		want()
		if late, err := o.Close(); late != 1 || err != nil {
			t.Error(late, err)
		}
		want("a20 false", "a30 false")
	})
}

// TestOrderFails: nothing more is given to who cannot take it.
func TestOrderFails(t *testing.T) {
	full := errors.New("full")
	o := NewOrder(time.Hour, func(int, bool) error { return full })
	if err := o.Put("x", 1, 1); err != full {
		t.Error(err)
	}
	if _, err := o.Close(); err != full {
		t.Error(err)
	}
}
