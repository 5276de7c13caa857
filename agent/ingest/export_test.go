package ingest

import "context"

// Drain sends what waits, for benchmarks.
func (c *Client) Drain(ctx context.Context) error { return c.drain(ctx) }
