package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// startGuest starts a daemon with the built-in guest and options on its command
// line, and returns a client for it. end ends both.
func startGuest(ctx context.Context, vcpus int, options string) (c *remote.Client, end func() error, err error) {
	dir, err := os.MkdirTemp("", "guestprobe-bench")
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(dir, "s")
	var log bytes.Buffer
	stop, err := daemon.Start(ctx, []string{"--socket", socket, "--log-level", "warn", "--vcpus", fmt.Sprint(vcpus), "--cmdline", options}, &log, os.Getenv, nil)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("guestprobed did not start: %w: %s", err, log.String()), os.RemoveAll(dir))
	}
	c = remote.New(socket)
	return c, func() error {
		c.Close()
		return errors.Join(stop(), os.RemoveAll(dir))
	}, nil
}

// usage is the resources used in a window of time.
type usage struct {
	first  float64 // work of vCPU 0 in a second of its thread's processor time
	all    float64 // of all vCPUs, per processor time of this process, which does not depend on the machine's other load
	others float64 // processor time of this process's threads other than vCPUs, per elapsed time
}

// work is how much each of two vCPUs has done until now.
type work func(context.Context, *remote.Client) ([2]uint64, error)

// window watches the guest's work for d. It continues until each measured
// quantity has grown and enough, if it is not nil, reports true: a slow host may
// do nothing at all in d.
func window(ctx context.Context, c *remote.Client, done work, d time.Duration, enough func() bool) (u usage, err error) {
	n, err := done(ctx, c)
	if err != nil {
		return u, err
	}
	began := time.Now()
	t, err := threadTimes()
	if err != nil {
		return u, err
	}
	for {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return u, fmt.Errorf("the guest has done nothing measurable in %v: %w", time.Since(began).Round(time.Millisecond), context.Cause(ctx))
		}
		m, err := done(ctx, c)
		if err != nil {
			return u, err
		}
		t2, err := threadTimes()
		if err != nil {
			return u, err
		}
		if m[0] == n[0] || t2.first <= t.first || enough != nil && !enough() {
			continue
		}
		all := t2.vcpus - t.vcpus + t2.others - t.others
		return usage{
			first:  float64(m[0]-n[0]) / (t2.first - t.first).Seconds(),
			all:    float64(m[0]-n[0]+m[1]-n[1]) / all.Seconds(),
			others: (t2.others - t.others).Seconds() / time.Since(began).Seconds(),
		}, nil
	}
}

// rounds is the work of a guest with the option busy, in kernel and user code.
func rounds(ctx context.Context, c *remote.Client) (n [2]uint64, err error) {
	for _, symbol := range []string{"workload_rounds", "user_rounds"} {
		of, err := counters(ctx, c, symbol)
		if err != nil {
			return n, err
		}
		n[0], n[1] = n[0]+of[0], n[1]+of[1]
	}
	return n, nil
}

// calls returns the counts of callForEver's work.
func calls(ctx context.Context, c *remote.Client) ([2]uint64, error) {
	return counters(ctx, c, symHotCalls)
}

// counters reads a counter of each of two vCPUs.
func counters(ctx context.Context, c *remote.Client, symbol string) (of [2]uint64, err error) {
	m, err := c.Memory(ctx, remote.Where{At: symbol}, remote.MemoryQuery{Length: 16})
	if err != nil {
		return of, err
	}
	b, err := hex.DecodeString(strings.TrimSpace(m.Data))
	if err != nil || len(b) != 16 {
		return of, fmt.Errorf("%s is %q", symbol, m.Data)
	}
	return [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}, nil
}

// callForEver has two vCPUs of a guest with the option bench call a function in user code without an end, and returns
// when both do.
func callForEver(ctx context.Context, c *remote.Client) error {
	l, err := c.Symbols(ctx, remote.SymbolQuery{Match: symHotLoop})
	if err != nil {
		return err
	}
	if len(l.Symbols) != 1 {
		return fmt.Errorf("%d symbols are %s", len(l.Symbols), symHotLoop)
	}
	for request := uint64(1); ; request++ { // the user program may not run yet
		of, err := counters(ctx, c, symHotCalls)
		if err != nil {
			return fmt.Errorf("the guest's user program does not answer: %w", err)
		}
		idle := 0
		for cpu, n := range of {
			if n != 0 {
				continue
			}
			idle++
			var b []byte
			for _, v := range []uint64{uint64(l.Symbols[0].Addr), 1 << 62, uint64(cpu), 0} {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
			for _, w := range []struct {
				at   int
				data []byte
			}{{mailFn, b}, {mailRequest, binary.LittleEndian.AppendUint64(nil, request)}} {
				if _, err := c.WriteMemory(ctx, api.WriteMemory{At: fmt.Sprintf("%s+%d", symMailbox, cpu*mailSize+w.at), Data: hex.EncodeToString(w.data)}); err != nil {
					return fmt.Errorf("the guest's mailbox: %w", err)
				}
			}
		}
		if idle == 0 {
			return nil
		}
	}
}
