package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/guestprobe/guestprobe/internal/cli"
	"github.com/guestprobe/guestprobe/internal/cli/child"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// beDaemon is the environment variable that makes this binary guestprobed.
const beDaemon = "GUESTPROBE_WEB_TEST_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(beDaemon) != "" {
		os.Unsetenv(beDaemon)
		os.Exit(daemon.Main(cli.Monitor))
	}
	code := m.Run()
	stopBrowser()
	os.Exit(code)
}

// guest is a guestprobed with the built-in guest.
type guest struct {
	*remote.Client
	t   *testing.T
	ctx context.Context
	d   *child.Daemon
	log *bytes.Buffer
}

// startGuest starts a daemon for the time of the test.
func startGuest(t *testing.T, args ...string) *guest {
	t.Helper()
	kvmtest.Require(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gp") // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, ctx: patience.Context(t), log: &bytes.Buffer{}, Client: remote.New(filepath.Join(dir, "s"))}
	g.d, err = child.Start(g.ctx, child.Options{Program: exe, Args: append([]string{"--socket", g.Path(), "--tick", "50ms"}, args...), Env: append(os.Environ(), beDaemon+"=1"), Output: g.log})
	if err != nil {
		t.Fatalf("%v; log:\n%s", err, g.log)
	}
	t.Cleanup(func() {
		g.Close()
		g.end()
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", g.log)
		}
	})
	return g
}

// end stops the daemon.
func (g *guest) end() {
	if g.d == nil {
		return
	}
	// The process may have gone by itself, which Wait then tells.
	_ = syscall.Kill(g.d.PID, syscall.SIGTERM)
	if err := g.d.Wait(); err != nil {
		g.t.Errorf("guestprobed: %v", err)
	}
	g.d = nil
}

// address is one of the page, with a new token.
func (g *guest) address() string {
	g.t.Helper()
	p, err := g.Page(g.ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	return p.URL
}

// window is a window of a browser.
type window struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	last   string // what the page had
	looked time.Time
	faults []string // exceptions that nobody has caught
	told   []string // what its console has
}

// browser is the process that all tests share: a start of its own for each would take most of their time.
var browser struct {
	ctx  context.Context
	stop []func()
}

// startBrowser returns the context of the browser, which it starts if it does not run.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	if browser.ctx != nil && browser.ctx.Err() == nil {
		return browser.ctx
	}
	chromium := kvmtest.RequireCommand(t, "chromium")
	stopBrowser()
	home, err := os.MkdirTemp("", "gpweb")
	if err != nil {
		t.Fatal(err)
	}
	// Chromium sometimes ignores a key that begins a smooth scroll on a busy machine.
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(filepath.Join(home, "user")),
		chromedp.Env("HOME="+home), chromedp.WindowSize(1280, 800), chromedp.Flag("disable-smooth-scrolling", true), chromedp.Flag("disable-dev-shm-usage", true))
	alloc, end := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	browser.ctx, browser.stop = ctx, []func(){cancel, end, func() { os.RemoveAll(home) }}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// stopBrowser ends the browser, if it runs.
func stopBrowser() {
	for _, f := range browser.stop {
		f()
	}
	browser.ctx, browser.stop = nil, nil
}

// newBrowser returns the first window of a browser that shares no cookies and no storage with others.
func newBrowser(t *testing.T) *window {
	t.Helper()
	in := startBrowser(t)
	return openWindow(t, in, chromedp.WithNewBrowserContext())
}

// openWindow opens a window of the same browser.
func (w *window) openWindow() *window {
	w.t.Helper()
	return openWindow(w.t, w.ctx)
}

func openWindow(t *testing.T, in context.Context, opts ...chromedp.ContextOption) *window {
	t.Helper()
	w := &window{t: t}
	var end context.CancelFunc
	w.ctx, end = chromedp.NewContext(in, opts...)
	t.Cleanup(end)
	context.AfterFunc(patience.Context(t), end)
	err := chromedp.Listen(w.ctx, func(ev any) {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			w.faults = append(w.faults, faultText(ev.ExceptionDetails))
		case *log.EventEntryAdded: // of the browser itself: requests that have failed
			w.told = append(w.told, ev.Entry.Text+" "+ev.Entry.URL)
		case *runtime.EventConsoleAPICalled:
			w.told = append(w.told, string(ev.Type))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// do runs actions that cannot fail.
func (w *window) do(actions ...chromedp.Action[chromedp.Void]) {
	w.t.Helper()
	if err := chromedp.Do(w.ctx, actions...); err != nil {
		w.t.Fatalf("%v; the page has\n%s", err, w.pageText())
	}
}

// look keeps what the page has: when the time is over, the browser is too.
func (w *window) look() {
	if time.Since(w.looked) > 5*time.Second {
		w.last, w.looked = w.pageText(), time.Now()
	}
}

// pageText is the page's text, for messages.
func (w *window) pageText() (text string) {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return "(no answer)"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return text + "\n" + strings.Join(w.faults, "\n")
}

// eval returns what an expression is.
func eval[T any](w *window, expr string) T {
	w.t.Helper()
	v, err := chromedp.Run(w.ctx, chromedp.Evaluate[T](expr))
	if err != nil {
		w.t.Fatalf("%s: %v; the page has\n%s", expr, err, w.pageText())
	}
	return v
}

// run runs a statement.
func (w *window) run(js string) {
	w.t.Helper()
	w.do(chromedp.Evaluate[chromedp.Void](js))
}

// waitFor waits for an expression to be true.
func (w *window) waitFor(format string, args ...any) {
	w.t.Helper()
	expr := fmt.Sprintf(format, args...)
	// From here: the page allows no eval, by which chromedp.Poll would do it there.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		is, err := chromedp.Run(w.ctx, chromedp.Evaluate[bool](`(() => { try { return Boolean(`+expr+`) } catch { return false } })()`))
		if err == nil && is {
			return
		}
		select {
		case <-again.C:
		case <-w.ctx.Done():
			err = w.ctx.Err()
		}
		if w.ctx.Err() != nil {
			// A long page would hide the condition in a log.
			w.t.Fatalf("waiting for %s: %v; the page had\n%.4000s", expr, err, w.last)
		}
		w.look()
	}
}

// open opens an address, and waits for the page to have drawn itself.
func (w *window) open(url string) {
	w.t.Helper()
	w.do(chromedp.Navigate(url))
	w.waitFor(`document.documentElement.dataset.ready`)
}

// view goes to a view.
func (w *window) view(name string) {
	w.t.Helper()
	base, _, _ := strings.Cut(name, ":")
	w.run(`location.hash = ` + quote(name))
	w.waitFor(`document.querySelector("main > section#view-%s")`, base)
}

// write puts a text into a field, as somebody who types it does.
func (w *window) write(selector, text string) {
	w.t.Helper()
	w.run(fmt.Sprintf(`(() => { const e = document.querySelector(%s); e.focus(); e.value = %s; e.setSelectionRange?.(e.value.length, e.value.length); e.dispatchEvent(new Event("input", {bubbles: true})) })()`, quote(selector), quote(text)))
}

// press clicks the button that says so, once it can be clicked.
func (w *window) press(text string) {
	w.t.Helper()
	find := `[...document.querySelectorAll("main button")].find((b) => !b.hidden && !b.disabled && !b.ariaDisabled && (b.textContent === ` + quote(text) + ` || b.ariaLabel === ` + quote(text) + `))`
	w.waitFor("%s", find)
	w.run(find + `.click()`)
}

// enter presses Enter on what has the focus, in the page itself: keys that Chromium is sent get lost on a busy machine. What the page does
// not do by itself, the browser would: a button is clicked.
func (w *window) enter() {
	w.t.Helper()
	w.waitFor(`document.activeElement !== document.body`)
	w.run(`(() => {
		const e = document.activeElement;
		if (e.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true})) && e.tagName === "BUTTON") e.click();
	})()`)
}

// waitForText waits for a text in what a selector finds.
func (w *window) waitForText(selector, text string) {
	w.t.Helper()
	w.waitFor(`[...document.querySelectorAll(%s)].some((e) => !e.hidden && e.textContent.includes(%s))`, quote(selector), quote(text))
}

// checkConsole fails for what the console has.
func (w *window) checkConsole() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.told {
		w.t.Errorf("the console: %s", text)
	}
}

// checkExceptions fails for exceptions that nobody has caught.
func (w *window) checkExceptions() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		w.t.Errorf("the page: %s", f)
	}
}

// prefer has the browser prefer dark or light pages. Colors then change at once.
func (w *window) prefer(scheme string) {
	w.t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}}
	if _, err := chromedp.Call(w.ctx, emulation.SetEmulatedMedia, p); err != nil {
		w.t.Fatal(err)
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// attach attaches probes that must be all right.
func (g *guest) attach(defs ...string) {
	g.t.Helper()
	var specs []api.ProbeSpec
	for _, d := range defs {
		specs = append(specs, api.ProbeSpec{Def: d})
	}
	if _, err := g.Attach(g.ctx, specs...); err != nil {
		g.t.Fatal(err)
	}
}

// faultText is an exception with where it comes from.
func faultText(d *runtime.ExceptionDetails) string {
	b, err := json.Marshal(d)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
