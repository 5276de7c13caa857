package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// checkEngines asks each engine who it is. Of those that were named, each that does not answer is a fault of its own.
func (r *Report) checkEngines(ctx context.Context, o Options) {
	urls := o.Engines
	if len(urls) == 0 {
		urls = UsualEngines()
	}
	found, silent := askAll(ctx, urls)
	r.Engines = append(r.Engines, found...)
	for _, e := range found {
		detail := e.Kind + " at " + e.URL
		if e.Model != "" {
			detail += " serves " + e.Model
		}
		r.add(Check{Name: "engine", State: Fine, Detail: detail})
	}
	if len(o.Engines) > 0 {
		for _, s := range silent {
			r.add(Check{"engine", Failed, s.url + ": " + s.why.Error(), "you", s.fix()})
		}
	} else if len(found) == 0 {
		r.add(Check{
			"engine", Warning, "no engine tells its metrics on " + usualPortsText, "you",
			"name it: --engine http://HOST:PORT (llama.cpp needs --metrics)",
		})
	}
}

// silence is an engine that did not tell who it is, and why.
type silence struct {
	url string
	why error
}

// fix says what to do about it.
func (s silence) fix() string {
	const metrics = "turn its metrics on (llama.cpp: --metrics, SGLang: --enable-metrics), and see that the URL is the engine's base URL"
	switch why := s.why.Error(); {
	case strings.Contains(why, "refused"):
		return "start the engine, or correct its port: nothing listens there"
	case strings.Contains(why, "in time"):
		return "see that the engine is not stuck, and that no firewall is in between"
	case strings.Contains(why, "status 401"), strings.Contains(why, "status 403"):
		return "let this host read the engine's /metrics without a key"
	case strings.Contains(why, "status 404"), strings.Contains(why, "no known engine"), strings.Contains(why, "not readable"):
		return metrics
	}
	return "see that the URL is the engine's base URL, and that `curl " + strings.TrimRight(s.url, "/") + "/metrics` answers"
}

// FindEngines asks all urls at once which engine answers there, and returns those that do, in the order of urls.
func FindEngines(ctx context.Context, urls []string) []Engine {
	found, _ := askAll(ctx, urls)
	return found
}

// askAll asks all urls at once, each once, and returns who answered and who did not, both in the order of urls.
func askAll(ctx context.Context, urls []string) ([]Engine, []silence) {
	var once []string
	for _, u := range urls {
		if u = strings.TrimRight(u, "/"); !slices.Contains(once, u) {
			once = append(once, u)
		}
	}
	engines, causes := make([]*Engine, len(once)), make([]error, len(once))
	g, ctx := errgroup.WithContext(ctx)
	for i, url := range once {
		g.Go(func() error {
			engines[i], causes[i] = ask(ctx, url)
			return nil
		})
	}
	_ = g.Wait() // none of them returns an error
	var found []Engine
	var silent []silence
	for i, e := range engines {
		if e != nil {
			found = append(found, *e)
		} else {
			silent = append(silent, silence{once[i], causes[i]})
		}
	}
	return found, silent
}

// UsualEngines are the URLs that are tried when none is named.
func UsualEngines() []string {
	var urls []string
	for _, port := range usualPorts {
		urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d", port))
	}
	return urls
}

// ask asks one engine who it is, or returns why it does not tell.
func ask(ctx context.Context, url string) (*Engine, error) {
	cfg := scrape.DefaultConfig()
	cfg.URL, cfg.Target, cfg.Timeout = url, url, 2*time.Second
	var e *Engine
	clock, err := hostclock.New()
	if err != nil {
		return nil, fmt.Errorf("read clocks: %w", err)
	}
	s, err := scrape.New(cfg, clock.Now, scrape.Sink{
		Sample: func(*timeline.EngineSample) {},
		Event:  func(timeline.Event) {},
		Identity: func(id scrape.Identity) {
			e = &Engine{URL: url, Kind: id.Engine, Model: id.Model, Version: id.Version}
		},
	})
	if err != nil {
		return nil, err
	}
	if err := s.Once(ctx); err != nil {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	if e == nil {
		return nil, errors.New("it tells metrics, but not who it is")
	}
	return e, nil
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
		detail := "cannot write to " + dir
		if there != dir {
			detail = "cannot make " + dir + ": no permission to write to " + there
		}
		return Check{"state", Failed, detail, "you", "--set state_dir=PATH, or run as the agent's user"}
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
