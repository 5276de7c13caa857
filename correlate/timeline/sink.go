package timeline

// GPUSink takes what a source of counters tells. Implementations are safe for concurrent use and do not block.
type GPUSink interface {
	// SetGPUs hands over the list of GPUs that later calls refer to by position. It comes first, and comes again when
	// the list changes. A GPU keeps its position for as long as the source runs; a new one is appended.
	SetGPUs(gpus []GPU)
	AddSample(s *Sample)
	AddCapability(c Capability)
	AddEvent(e Event)
}

// RequestSink takes what a probe observes. Implementations are safe for concurrent use and do not block: what does
// not fit is dropped and counted. For one request the calls come in order: OpenRequest, any number of AddToken,
// CloseRequest; Ref ties them together. Tokens and the open record are best effort, the closing record is complete in
// itself.
type RequestSink interface {
	OpenRequest(r *Request)
	AddToken(e TokenEvent)
	CloseRequest(r *Request)
}

// TokensSink is a RequestSink that takes many events at once, for what one costs to hand over. Who has several at hand
// looks for it, and calls AddToken for each where it is not there.
type TokensSink interface {
	RequestSink
	// AddTokens takes events as AddToken would, one after the other. It may change them, and keeps none of the slice.
	AddTokens(events []TokenEvent)
}
