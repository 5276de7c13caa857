package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// usualPorts are where engines listen unless told otherwise: vLLM, SGLang, llama.cpp, TGI, and TensorRT-LLM's 8000.
var usualPorts = []int{8000, 30000, 8080, 3000}

const usualPortsText = "127.0.0.1 ports 8000, 30000, 8080, 3000"

func checkClocks() Check {
	clock, err := hostclock.New()
	if err != nil {
		return Check{"clocks", Failed, err.Error(), "the cluster's admin", "the kernel must offer CLOCK_MONOTONIC"}
	}
	a, err := clock.Anchor()
	if err != nil {
		return Check{"clocks", Failed, err.Error(), "the cluster's admin", "the kernel must offer CLOCK_REALTIME and CLOCK_BOOTTIME"}
	}
	if a.BootID == "" {
		return Check{
			"clocks", Warning, "the kernel tells no boot id: recordings of two boots cannot be told apart", "the cluster's admin",
			"mount /proc",
		}
	}
	return Check{Name: "clocks", State: Fine, Detail: fmt.Sprintf("all clocks read within %v", a.Width)}
}

// checkStamps asks whether the kernel stamps what a socket receives.
func checkStamps() Check {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Check{"stamps", Warning, err.Error(), "you", "allow AF_INET sockets"}
	}
	defer func() { _ = unix.Close(fd) }() // it was only asked
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return Check{"stamps", Warning, "the kernel does not stamp received bytes: tokens carry the time their read returned", "nobody: this kernel lacks it", ""}
	}
	return Check{Name: "stamps", State: Fine, Detail: "the kernel stamps received bytes (SO_TIMESTAMPNS)"}
}

// checkEngines asks each engine who it is.
func (r *Report) checkEngines(ctx context.Context, o Options) {
	urls := o.Engines
	if len(urls) == 0 {
		urls = UsualEngines()
	}
	found := FindEngines(ctx, urls)
	r.Engines = append(r.Engines, found...)
	for _, e := range found {
		detail := e.Kind + " at " + e.URL
		if e.Model != "" {
			detail += " serves " + e.Model
		}
		r.add(Check{Name: "engine", State: Fine, Detail: detail})
	}
	switch {
	case len(found) > 0:
	case len(o.Engines) > 0:
		r.add(Check{
			"engine", Failed, "none of the configured engines tells its metrics", "you",
			"start the engine with its metrics on (llama.cpp: --metrics), and see that engine_url is its base URL",
		})
	default:
		r.add(Check{
			"engine", Warning, "no engine tells its metrics on " + usualPortsText, "you",
			"name it: --engine http://HOST:PORT (llama.cpp needs --metrics)",
		})
	}
}

// FindEngines asks all urls at once which engine answers there, and returns those that do, in the order of urls.
func FindEngines(ctx context.Context, urls []string) []Engine {
	slots := make([]*Engine, len(urls))
	g, ctx := errgroup.WithContext(ctx)
	for i, url := range urls {
		g.Go(func() error {
			slots[i] = ask(ctx, url)
			return nil
		})
	}
	_ = g.Wait() // none of them returns an error
	var found []Engine
	for _, e := range slots {
		if e != nil {
			found = append(found, *e)
		}
	}
	return found
}

// UsualEngines are the URLs that are tried when none is named.
func UsualEngines() []string {
	var urls []string
	for _, port := range usualPorts {
		urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d", port))
	}
	return urls
}

func ask(ctx context.Context, url string) *Engine {
	cfg := scrape.DefaultConfig()
	cfg.URL, cfg.Target, cfg.Timeout = url, url, 2*time.Second
	var e *Engine
	clock, err := hostclock.New()
	if err != nil {
		return nil
	}
	s, err := scrape.New(cfg, clock.Now, scrape.Sink{
		Sample: func(*timeline.EngineSample) {},
		Event:  func(timeline.Event) {},
		Identity: func(id scrape.Identity) {
			e = &Engine{URL: url, Kind: id.Engine, Model: id.Model, Version: id.Version}
		},
	})
	if err != nil {
		return nil
	}
	if err := s.Once(ctx); err != nil {
		return nil
	}
	return e
}

func checkAgent(ctx context.Context, socket string) Check {
	if socket == "" {
		return Check{Name: "agent", State: Skipped, Detail: "no socket configured"}
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close() // only asked whether it answers
		return Check{Name: "agent", State: Fine, Detail: "an agent answers on " + socket}
	case errors.Is(err, fs.ErrPermission):
		return Check{"agent", Warning, "no permission for " + socket, "you", "use sudo, or the group that the agent runs as"}
	}
	return Check{Name: "agent", State: Skipped, Detail: "no agent runs on " + socket}
}

// leastFree is the room below which recordings are at risk.
const leastFree = 3 << 30

func checkState(dir string) Check {
	if dir == "" {
		return Check{Name: "state", State: Skipped, Detail: "no state directory configured"}
	}
	there := dir
	for there != "/" && there != "." {
		if _, err := os.Stat(there); err == nil {
			break
		}
		there = filepath.Dir(there)
	}
	if unix.Access(there, unix.W_OK) != nil {
		return Check{"state", Failed, "cannot write below " + there, "you", "--set state_dir=PATH, or run as the agent's user"}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(there, &st); err != nil {
		return Check{"state", Warning, err.Error(), "you", "--set state_dir=PATH"}
	}
	free := st.Bavail * uint64(st.Bsize)
	if free < leastFree {
		return Check{
			"state", Warning, fmt.Sprintf("%.1f GB free below %s", float64(free)/1e9, there), "you",
			"free some room, or --set record.max_bytes=BYTES",
		}
	}
	return Check{Name: "state", State: Fine, Detail: fmt.Sprintf("%s, %.0f GB free", dir, float64(free)/1e9)}
}
