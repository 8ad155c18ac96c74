package fleet

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// wire carries packets between two connections, and does with each what fate says.
type wire struct {
	mu   sync.Mutex
	cut  bool // nothing comes through
	fate func(p []byte) (times int, late time.Duration)
	lost int // packets in a row
	dst  *Conn
}

// mostLost is how many packets in a row a wire loses at most. With more, the last bytes and their acknowledgements may all be lost for lingerTime.
const mostLost = 2

func (w *wire) send(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return
	}
	times, late := 1, time.Millisecond
	if w.fate != nil {
		times, late = w.fate(p)
	}
	if w.lost++; times > 0 || w.lost > mostLost {
		times, w.lost = max(times, 1), 0
	}
	for range times {
		time.AfterFunc(late, func() { w.dst.receive(p) })
	}
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

// pair are the two ends of a connection over two wires.
type pair struct {
	client, daemon *Conn
	up, down       *wire
}

func newPair(fate func([]byte) (int, time.Duration)) *pair {
	p := &pair{up: &wire{fate: fate}, down: &wire{fate: fate}}
	p.client = newConn(ends{local: address("client"), remote: address("daemon"), window: minWindow, limit: minWindow}, p.up.send, func() {})
	p.daemon = newConn(ends{local: address("daemon"), remote: address("client"), window: maxWindow, told: minWindow, limit: minWindow}, p.down.send, func() {})
	p.up.dst, p.down.dst = p.daemon, p.client
	p.client.start()
	p.daemon.start()
	return p
}

// noise is n bytes of that seed.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

// TestBytesAsSent: what is written is read, in both directions at once, whatever becomes of packets.
func TestBytesAsSent(t *testing.T) {
	for _, tc := range []struct {
		name string
		fate func(*rand.Rand) (int, time.Duration)
	}{
		{"as they are", func(*rand.Rand) (int, time.Duration) { return 1, time.Millisecond }},
		{"half are lost", func(r *rand.Rand) (int, time.Duration) { return r.IntN(2), time.Millisecond }},
		{"twice", func(r *rand.Rand) (int, time.Duration) { return 1 + r.IntN(2), time.Millisecond }},
		{"in any order", func(r *rand.Rand) (int, time.Duration) { return 1, time.Duration(r.IntN(100)) * time.Millisecond }},
		{"all of it", func(r *rand.Rand) (int, time.Duration) {
			return r.IntN(3), time.Duration(r.IntN(5000)) * time.Millisecond
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 2))
				// Both wires use r, under locks of their own.
				var mu sync.Mutex
				p := newPair(func([]byte) (int, time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					return tc.fate(r)
				})
				var all sync.WaitGroup
				for i, dir := range []struct{ from, to *Conn }{{p.client, p.daemon}, {p.daemon, p.client}} {
					want := noise(700_000+i, uint64(i))
					all.Go(func() {
						for part := range slices.Chunk(want, 30_001) {
							if _, err := dir.from.Write(part); err != nil {
								t.Errorf("write: %v", err)
								return
							}
						}
					})
					all.Go(func() {
						got := make([]byte, len(want))
						if _, err := io.ReadFull(dir.to, got); err != nil {
							t.Errorf("read: %v", err)
						}
						if !bytes.Equal(got, want) {
							t.Error("other bytes than were written")
						}
					})
				}
				all.Wait()
				// What is written before Close comes, and then the end.
				_, _ = p.daemon.Write([]byte("bye"))
				_ = p.daemon.Close()
				if rest, err := io.ReadAll(p.client); string(rest) != "bye" || err != nil {
					t.Errorf("at the end %q, %v", rest, err)
				}
				_ = p.client.Close()
				<-p.client.ended
				<-p.daemon.ended
			})
		})
	}
}

// TestSlowReader: a writer waits for its reader, and no more than there is room for is on its way.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(nil)
		_ = p.daemon.SetWriteDeadline(time.Now().Add(time.Minute))
		n, err := p.daemon.Write(noise(10<<20, 1))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n != maxSend+minWindow {
			t.Errorf("%d bytes written, %v; want %d", n, err, maxSend+minWindow)
		}
		if err := p.daemon.AwaitRoom(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("room: %v", err)
		}
		_ = p.daemon.SetWriteDeadline(time.Time{})
		go func() { _, _ = io.ReadFull(p.client, make([]byte, n)) }()
		if err := p.daemon.AwaitRoom(); err != nil {
			t.Errorf("no room behind a read: %v", err)
		}
		synctest.Wait()
		_ = p.client.Close()
		_ = p.daemon.Close()
		<-p.client.ended
		<-p.daemon.ended
	})
}

// TestCut: a network that is cut for a while changes nothing; one that stays cut ends both ends.
func TestCut(t *testing.T) {
	for _, tc := range []struct {
		cut  time.Duration
		want error
	}{{60 * time.Second, nil}, {5 * time.Minute, syscall.ETIMEDOUT}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(nil)
			_, _ = p.client.Write([]byte("one"))
			got := make([]byte, 6)
			if _, err := io.ReadFull(p.daemon, got[:3]); err != nil {
				t.Fatal(err)
			}
			p.up.set(true)
			p.down.set(true)
			_, _ = p.client.Write([]byte("two"))
			time.Sleep(tc.cut)
			p.up.set(false)
			p.down.set(false)
			if _, err := io.ReadFull(p.daemon, got[3:]); !errors.Is(err, tc.want) {
				t.Errorf("cut for %v: %v, want %v", tc.cut, err, tc.want)
			}
			if tc.want == nil && string(got) != "onetwo" {
				t.Errorf("read %q", got)
			}
			_ = p.client.Close()
			_ = p.daemon.Close()
			<-p.client.ended
			<-p.daemon.ended
		})
	}
}

// TestNoListener: an end whose other end is gone without a word learns it when it says something.
func TestNoListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(nil)
		p.up.fate = func([]byte) (int, time.Duration) {
			time.AfterFunc(time.Millisecond, p.client.noteMissing)
			return 0, 0
		}
		p.down.set(true)
		began := time.Now()
		_, _ = p.client.Write([]byte("x"))
		if _, err := p.client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
		if took := time.Since(began); took < alone || took > 2*alone {
			t.Errorf("took %v", took)
		}
		if _, err := p.client.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
		<-p.client.ended
		_ = p.daemon.Close()
		<-p.daemon.ended
	})
}

// TestReadDeadline: one that is over ends a read that waits, and one that is far away does not.
func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(nil)
		time.AfterFunc(time.Second, func() { _ = p.client.SetReadDeadline(time.Unix(1, 0)) })
		_ = p.client.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := p.client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { _ = p.client.Close() })
		_ = p.client.SetReadDeadline(time.Time{})
		if _, err := p.client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		_ = p.daemon.Close()
		<-p.client.ended
		<-p.daemon.ended
	})
}

// FuzzReceive: no packet makes an end take more than it has room for.
func FuzzReceive(f *testing.F) {
	f.Add((&packet{flags: flagFin, data: []byte("x")}).encode())
	f.Add((&packet{seq: 1, ack: 1, limit: ^uint64(0)}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newConn(ends{window: minWindow, limit: minWindow}, nil, nil)
		for n := 0; n < len(b); n += 64 {
			c.receive(b[n:])
			c.mu.Lock()
			_, _, _ = c.duePackets(time.Now())
			c.mu.Unlock()
		}
		if len(c.in) > minWindow || c.limit > maxWindow+1<<20 && len(c.out) == 0 && c.acked > 1 {
			t.Errorf("%d bytes to read, limit %d, acknowledged %d", len(c.in), c.limit, c.acked)
		}
	})
}
