package ingest

import (
	"cmp"
	"context"
	"time"

	"connectrpc.com/connect"

	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
)

const (
	// firstExchanges is how many exchanges open a connection to another host: the quickest of eight is near the shortest
	// round trip (the clock filter of NTP, RFC 5905).
	firstExchanges = 8
	// keptExchanges bounds those not yet handed over.
	keptExchanges = 32
	// syncEvery is how often exchanges are made beside those that ride on reports.
	syncEvery = 5 * time.Second
	// requestRows bounds the requests of one report.
	requestRows = 1024
)

// drain sends reports until nothing waits. What could not be sent stays, and goes first the next time.
func (c *Client) drain(ctx context.Context) error {
	for {
		if c.pending == nil {
			m, some := c.buf.take(c.cfg.Rows, requestRows)
			if !some {
				return nil
			}
			c.sequence++
			m.Sequence = c.sequence
			c.pending = m
		}
		if err := c.sync(ctx); err != nil {
			return err
		}
		if err := c.send(ctx); err != nil {
			return err
		}
	}
}

// send sends the pending report. It returns an error if that is worth another attempt.
func (c *Client) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	m := c.pending
	m.Origin, m.Exchanges = c.origin(), c.exchanges
	t1 := c.cfg.Now()
	m.T1Ns = int64(t1)
	resp, err := c.rpc.Report(ctx, connect.NewRequest(m))
	t4 := c.cfg.Now()
	switch {
	case err == nil:
		c.pending, c.exchanges = nil, nil
		c.answered(resp.Msg.GetBootId(), &pb.Stamps{T1Ns: int64(t1), T2Ns: resp.Msg.GetT2Ns(), T3Ns: resp.Msg.GetT3Ns(), T4Ns: int64(t4)})
		return nil
	case hopeless(connect.CodeOf(err)):
		c.buf.lose(m)
		// Exchanges may be what was refused, and would spoil the next report too: they are made anew.
		c.pending, c.exchanges, c.agentBoot = nil, nil, ""
		return nil
	}
	c.agentBoot = "" // it may be another agent that answers next
	return err
}

// hopeless reports whether a report that was refused so would be refused again.
func hopeless(code connect.Code) bool {
	return code == connect.CodeInvalidArgument || code == connect.CodeResourceExhausted
}

// noBoot stands for the boot of an agent that has no boot id: it is none that this client could share.
const noBoot = "none"

// clockSlack is by how much two processes may read one clock apart: each reads it once, and goes on by itself.
const clockSlack = time.Millisecond

// answered notes whose boot the agent runs on, and keeps the stamps of its answer if its clock is another than this
// client's.
func (c *Client) answered(boot string, x *pb.Stamps) {
	boot = cmp.Or(boot, noBoot)
	if boot != c.agentBoot && c.agentBoot != "" {
		c.exchanges = nil // they are of another clock
	}
	c.agentBoot = boot
	slack := int64(clockSlack)
	if boot == c.cfg.BootID && (x.GetT2Ns() < x.GetT1Ns()-slack || x.GetT3Ns() > x.GetT4Ns()+slack) {
		c.apart = true
	}
	if !c.foreign() {
		return
	}
	if len(c.exchanges) >= keptExchanges {
		c.exchanges = append(c.exchanges[:0], c.exchanges[1:]...)
	}
	c.exchanges = append(c.exchanges, x)
}

// foreign reports whether the agent is known to have another clock than this client.
func (c *Client) foreign() bool { return c.agentBoot != "" && (c.apart || c.agentBoot != c.cfg.BootID) }

// sync learns whose boot the agent runs on, and exchanges stamps with an agent on another.
func (c *Client) sync(ctx context.Context) error {
	rounds := 0
	switch {
	case c.agentBoot == "":
		if err := c.exchange(ctx); err != nil {
			return err
		}
		if c.foreign() {
			rounds = firstExchanges - 1
		}
	case c.foreign() && c.cfg.Now().Sub(c.synced) >= syncEvery:
		rounds = 1
	}
	for range rounds {
		if err := c.exchange(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	t1 := c.cfg.Now()
	resp, err := c.rpc.Exchange(ctx, connect.NewRequest(&pb.ExchangeRequest{T1Ns: int64(t1)}))
	t4 := c.cfg.Now()
	if err != nil {
		c.agentBoot = ""
		return err
	}
	c.synced = t4
	c.answered(resp.Msg.GetBootId(), &pb.Stamps{T1Ns: int64(t1), T2Ns: resp.Msg.GetT2Ns(), T3Ns: resp.Msg.GetT3Ns(), T4Ns: int64(t4)})
	return nil
}
