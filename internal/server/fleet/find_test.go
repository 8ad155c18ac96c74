package fleet

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestFindMany: ten thousand daemons that answer at once are all found by one question.
func TestFindMany(t *testing.T) {
	const daemons = 10_000
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	ctx := patience.Context(t)
	for !s.ReadyForConnections(time.Second) {
		if ctx.Err() != nil {
			t.Fatal("the server does not begin")
		}
	}
	n, err := Connect(ctx, Address{URL: s.ClientURL()}, "test", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var asked atomic.Int64
	if _, err := nc.Subscribe(micro.APIPrefix+"."+micro.InfoVerb.String()+"."+prefix, func(m *nats.Msg) {
		asked.Add(1)
		for i := range daemons {
			info := micro.Info{ServiceIdentity: micro.ServiceIdentity{Name: prefix, ID: fmt.Sprintf("daemon%06d", i), Version: serviceVersion, Metadata: map[string]string{"name": fmt.Sprint("vm", i)}}}
			b, err := json.Marshal(info)
			if err != nil {
				t.Error(err)
			}
			if err := m.Respond(b); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ds, err := n.Find(ctx, Look{Expect: daemons, Quiet: time.Minute})
	if err != nil || len(ds) != daemons || asked.Load() != 1 {
		t.Errorf("%d daemons by %d questions, %v; want %d by one", len(ds), asked.Load(), err, daemons)
	}
}
