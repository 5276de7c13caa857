package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The ways from the client to the origin.
const (
	wayDirect  = "direct"
	wayNginx   = "nginx"
	wayHAProxy = "HAProxy"
	wayReverse = "ReverseProxy"
	wayAlone   = "tpotscope alone"
	wayAgent   = "tpotscope" // which reports to an agent
)

// programs are the paths of what is run.
type programs struct{ self, tpotscope, nginx, haproxy, libs string }

// allWays are the proxies, in the order in which the table shows them.
var allWays = []string{wayNginx, wayHAProxy, wayReverse, wayAlone, wayAgent}

// libraries is the environment that lets nginx and HAProxy find their libraries.
func (p programs) libraries() []string {
	if p.libs == "" {
		return nil
	}
	return []string{"LD_LIBRARY_PATH=" + p.libs}
}

// way is a proxy that runs, or the direct way, which has no process.
type way struct {
	name string
	addr string
	proc *process
	pids []int
}

// open starts the way of that name, in a directory of its own under dir.
func (b *bench) open(ctx context.Context, name, dir string) (*way, error) {
	dir = filepath.Join(dir, strings.ReplaceAll(strings.ToLower(name), " ", "-"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	w := &way{name: name, addr: addr}
	if w.proc, err = b.launch(name, dir, addr); err != nil {
		return nil, err
	}
	b.started = append(b.started, w.proc)
	if err := w.proc.answering(ctx, "tcp", addr); err != nil {
		return nil, err
	}
	w.pids, err = tree(w.proc.cmd.Process.Pid)
	return w, err
}

func (b *bench) launch(name, dir, addr string) (*process, error) {
	upstream := "http://" + b.origin
	switch name {
	case wayNginx:
		conf, err := write(dir, "nginx.conf", nginxConf, "DIR", dir, "LISTEN", addr, "ORIGIN", b.origin)
		if err != nil {
			return nil, err
		}
		return start(name, dir, b.bin.libraries(), b.bin.nginx, "-p", dir, "-c", conf, "-e", "stderr")
	case wayHAProxy:
		conf, err := write(dir, "haproxy.cfg", haproxyConf, "LISTEN", addr, "ORIGIN", b.origin)
		if err != nil {
			return nil, err
		}
		return start(name, dir, b.bin.libraries(), b.bin.haproxy, "-db", "-f", conf)
	case wayReverse:
		return start(name, dir, nil, b.bin.self, "reverse", "-listen", addr, "-upstream", upstream)
	case wayAlone:
		return start(name, dir, nil, b.bin.tpotscope, "proxy", "--listen", addr, "--upstream", upstream, "--agent", "unix:"+filepath.Join(dir, "none.sock"))
	}
	return start(name, dir, nil, b.bin.tpotscope, "proxy", "--listen", addr, "--upstream", upstream, "--agent", "unix:"+b.socket)
}

// write fills a configuration's words in pairs of word and value, and writes it.
func write(dir, name, text string, pairs ...string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(text)), 0o644)
}

// Both proxies run as they would in front of an engine: as many workers or threads as the machine has processors, which is
// the default of both packages, connections to the origin kept open, no log of requests, and nothing held back.
const (
	nginxConf = `daemon off;
pid DIR/nginx.pid;
worker_processes auto;
events { worker_connections 4096; }
http {
	access_log off;
	client_body_temp_path DIR/body;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
	upstream origin { server ORIGIN; keepalive 256; }
	server {
		listen LISTEN;
		location / {
			proxy_pass http://origin;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
			proxy_read_timeout 300s;
		}
	}
}
`
	haproxyConf = `global
	maxconn 4096
defaults
	mode http
	option http-no-delay
	timeout connect 5s
	timeout client 300s
	timeout server 300s
frontend client
	bind LISTEN
	default_backend origin
backend origin
	server origin ORIGIN
`
)

// openAgent starts an agent that samples no GPU and takes the proxy's reports on a socket under dir.
func (b *bench) openAgent(ctx context.Context, dir string) error {
	metrics, err := freePort()
	if err != nil {
		return err
	}
	b.socket = filepath.Join(dir, "agent.sock")
	p, err := start("tpotscope agent", dir, nil, b.bin.tpotscope, "agent", "--engine", "http://"+b.origin, "--nvml", "off",
		"--set", "metrics.listen="+metrics, "--set", "socket="+b.socket, "--set", "state_dir="+filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	b.started = append(b.started, p)
	b.agent = p
	b.metrics = metrics
	return p.answering(ctx, "unix", b.socket)
}

// serveReverse serves Go's own reverse proxy, set up for streams.
func serveReverse(ctx context.Context, args []string) error {
	var listen, upstream string
	fs := flag.NewFlagSet("reverse", flag.ContinueOnError)
	fs.StringVar(&listen, "listen", "", "address to listen on")
	fs.StringVar(&upstream, "upstream", "", "URL to send to")
	if err := fs.Parse(args); err != nil {
		return err
	}
	u, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Addr: listen,
		Handler: &httputil.ReverseProxy{
			Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(u) },
			Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256},
			FlushInterval: -1,
		},
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: time.Minute,
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve reverse proxy: %w", err)
	}
	return nil
}
