package remote_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Attach a probe, list the attached probes, and detach it again.
func Example() {
	ctx := context.Background()
	c := remote.New(socket) // as /run/guestprobed/guestprobed.sock
	defer c.Close()

	if _, err := c.Attach(ctx, api.ProbeSpec{Def: "p:reads vfs_read fd=%di:s32"}); err != nil {
		log.Fatal(err)
	}
	probes, err := c.Probes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range probes {
		fmt.Println(p.Name, "at", p.Symbol)
	}
	last, err := c.Detach(ctx, "reads")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("counts close:", last.Stats.Hits == last.Stats.Handled+last.Stats.Filtered+last.Stats.Missed)
	// Output:
	// kprobes/reads at vfs_read
	// counts close: true
}

// ErrUnreachable tells a daemon that does not run from a request that failed.
func ExampleNew() {
	c := remote.New("/run/no-such-directory/guestprobed.sock")
	defer c.Close()
	_, err := c.Version(context.Background())
	fmt.Println(errors.Is(err, remote.ErrUnreachable))
	fmt.Println(errors.Is(err, os.ErrNotExist))
	// Output:
	// true
	// true
}

// Attach attaches all of the definitions or none. The error has the reason and the
// definition that was rejected.
func ExampleClient_Attach() {
	ctx := context.Background()
	c := remote.New(socket)
	defer c.Close()

	_, err := c.Attach(ctx,
		api.ProbeSpec{Def: "p:reads vfs_read"},
		api.ProbeSpec{Def: "p:writes vfs_wriet"},
	)
	var rejected *api.Error
	if !errors.As(err, &rejected) {
		log.Fatal(err)
	}
	fmt.Println("definition", *rejected.Index, "is rejected:", rejected.Code)

	probes, err := c.Probes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(probes), "probes are attached")
	// Output:
	// definition 1 is rejected: symbol_not_found
	// 0 probes are attached
}

// Patterns select probes by name.
func ExampleClient_Probes() {
	ctx := context.Background()
	c := remote.New(socket)
	defer c.Close()

	if _, err := c.Attach(ctx,
		api.ProbeSpec{Def: "p:io/reads vfs_read"},
		api.ProbeSpec{Def: "r:io/read_results vfs_read got=$retval:s64"},
		api.ProbeSpec{Def: "p:forks do_fork"},
	); err != nil {
		log.Fatal(err)
	}
	probes, err := c.Probes(ctx, "io/read*")
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range probes {
		fmt.Println(p.Name, p.Kind)
	}
	detached, err := c.DetachAll(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("detached:", len(detached))
	// Output:
	// io/reads k
	// io/read_results r
	// detached: 3
}

// A stream attaches its own probes, and detaches them when it ends.
func ExampleClient_Events() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := remote.New(socket)
	defer c.Close()

	s, err := c.Events(ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:reads vfs_read fd=%di:s32", Filter: "fd > 2"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	var start api.Start
	hits, asked := 0, false
	for {
		r, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		switch r.Type {
		case api.RecordStart:
			if err := json.Unmarshal(r.Data, &start); err != nil {
				log.Fatal(err)
			}
		case api.RecordHit:
			var h api.Hit
			if err := json.Unmarshal(r.Data, &h); err != nil {
				log.Fatal(err)
			}
			if hits++; hits <= 3 {
				fmt.Println(h.Probe, h.Args[0].Name, h.Args[0].Type)
			}
		case api.RecordEnd:
			var end api.End
			if err := json.Unmarshal(r.Data, &end); err != nil {
				log.Fatal(err)
			}
			fmt.Println("ended:", end.Reason)
			fmt.Println("complete:", end.Delivered == uint64(hits))
		}
		if hits >= 3 && !asked {
			asked = true
			if err := c.EndStream(ctx, start.Stream); err != nil {
				log.Fatal(err)
			}
		}
	}
	// Output:
	// kprobes/reads fd s32
	// kprobes/reads fd s32
	// kprobes/reads fd s32
	// ended: asked
	// complete: true
}

// A script runs until its stream ends: here by its own exit().
func ExampleClient_RunScript() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := remote.New(socket)
	defer c.Close()

	s, err := c.RunScript(ctx, api.RunScript{Script: `
		kprobe:vfs_read /cpu == 0 && !@seen/ { @seen = 1; printf("a read\n"); exit(); }
		END { printf("goodbye\n"); }`})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	var printed strings.Builder
	for {
		r, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		if r.Type == api.RecordOutput {
			var out api.Output
			if err := json.Unmarshal(r.Data, &out); err != nil {
				log.Fatal(err)
			}
			printed.WriteString(out.Text)
		}
	}
	for line := range strings.Lines(printed.String()) {
		if line != "\n" {
			fmt.Print(line)
		}
	}
	// Output:
	// a read
	// goodbye
	// @seen: 1
}

// A script with a name in Detach runs without a client, until StopScript.
func ExampleClient_DetachScript() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := remote.New(socket)
	defer c.Close()

	if _, err := c.DetachScript(ctx, api.RunScript{Detach: "reads", Script: `kprobe:vfs_read { @reads = count(); }`}); err != nil {
		log.Fatal(err)
	}
	info, err := c.Script(ctx, "reads", "")
	for ; err == nil && info.Hits == 0; info, err = c.Script(ctx, "reads", "") {
		time.Sleep(10 * time.Millisecond) // ctx ends the loop
	}
	if err != nil {
		log.Fatal(err)
	}
	name, _, _ := strings.Cut(strings.TrimSpace(*info.Maps), ":")
	fmt.Println(info.Name, "has the map", name)

	s, err := c.StopScript(ctx, "reads")
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for err == nil {
		_, err = s.Next() // its last output
	}
	fmt.Println(err)
	// Output:
	// reads has the map @reads
	// EOF
}

// The map of an eBPF program, one value for each vCPU.
func ExampleClient_Map() {
	ctx := context.Background()
	c := remote.New(socket)
	defer c.Close()

	object, err := os.ReadFile("../bpf/testdata/obj/count.o") // from docs/examples/count.bpf.c
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.AttachProgram(ctx, api.AttachProgram{Object: object}); err != nil {
		log.Fatal(err)
	}
	maps, err := c.Maps(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range maps {
		fmt.Println(m.Name, m.Kind)
	}
	hits, err := c.Map(ctx, "hits")
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range hits.Values {
		fmt.Printf("key %s: %d values\n", v.KeyData, len(v.Data))
	}
	if _, err := c.Detach(ctx, "count"); err != nil {
		log.Fatal(err)
	}
	// Output:
	// by_arg hash
	// hits percpu_array
	// key 0: 2 values
}
