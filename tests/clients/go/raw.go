package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	danube "github.com/danube-messaging/danube-go"
	"github.com/danube-messaging/danube-go/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpc-go with the official client's own stubs, for what its API cannot be told to do.

func dial() *grpc.ClientConn {
	conn, err := grpc.NewClient(strings.TrimPrefix(url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	return conn
}

// A consumer of the topic, on a connection of its own.
type rawConsumer struct {
	conn *grpc.ClientConn
	stub proto.ConsumerServiceClient
	id   uint64
}

func subscribe(conn *grpc.ClientConn, t string) rawConsumer {
	stub := proto.NewConsumerServiceClient(conn)
	got, err := stub.Subscribe(within(10), &proto.ConsumerRequest{RequestId: 7, TopicName: t, ConsumerName: "c", Subscription: "s"})
	must(err)
	check(got.RequestId == 7, "request id %d", got.RequestId)
	return rawConsumer{conn, stub, got.ConsumerId}
}

func (c rawConsumer) receive(ctx context.Context) grpc.ServerStreamingClient[proto.StreamMessage] {
	stream, err := c.stub.ReceiveMessages(ctx, &proto.ReceiveRequest{RequestId: 8, ConsumerId: c.id})
	must(err)
	return stream
}

func (c rawConsumer) ack(m message) {
	_, err := c.stub.Ack(within(5), &proto.AckRequest{RequestId: 9, MsgId: m.MsgId, SubscriptionName: "s"})
	must(err)
}

// A function that sends so many zeros, and the connection to close.
func rawProducer(t string) (func(size int, options ...grpc.CallOption) error, *grpc.ClientConn) {
	conn := dial()
	stub := proto.NewProducerServiceClient(conn)
	got, err := stub.CreateProducer(within(5), &proto.ProducerRequest{
		RequestId: 1, ProducerName: "raw", TopicName: t, DispatchStrategy: proto.DispatchStrategy_Reliable,
	})
	must(err)
	return func(size int, options ...grpc.CallOption) error {
		_, err := stub.SendMessage(within(20), &proto.StreamMessage{
			RequestId: 2, MsgId: &proto.MsgID{ProducerId: got.ProducerId, TopicName: t},
			Payload: make([]byte, size), ProducerName: "raw", PublishTime: 1,
		}, options...)
		return err
	}, conn
}

// The status on the wire, before the client's retries: one that no client retries.
func rawTooLarge(t string) {
	sendZeros, conn := rawProducer(t)
	defer conn.Close()
	for _, mib := range []int{5, 20, 80} {
		err := sendZeros(mib << 20)
		switch status.Code(err) {
		case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition:
		default:
			panic(fmt.Errorf("%d MiB: %v, which clients retry for ever or wait for", mib, err))
		}
	}
}

func headers() {
	t := topic("headers")
	producer(newClient(), t)
	conn := dial()
	defer conn.Close()
	stream := subscribe(conn, t).receive(within(5))
	began := time.Now()
	_, err := stream.Header()
	check(err == nil, "no response headers within 5 s while there is no message: %v", err)
	check(time.Since(began) < time.Second, "headers after %v", time.Since(began))
}

// A stream that nobody reads fills its window; unary calls and another stream on its connection go on.
func unread() {
	const count = 20
	t, other := topic("unread"), topic("unread-other")
	c := newClient()
	p, otherP := producer(c, t), producer(c, other)
	conn := dial()
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k := subscribe(conn, t)
	stream := k.receive(ctx)
	for i := range count {
		send(p, make([]byte, 1<<20), map[string]string{"i": fmt.Sprint(i)})
	}
	for range count {
		_, err := proto.NewDiscoveryClient(conn).TopicLookup(within(3), &proto.TopicLookupRequest{RequestId: 1, Topic: t})
		must(err)
	}
	otherStream := subscribe(conn, other).receive(ctx)
	send(otherP, make([]byte, 300000), nil)
	m, err := otherStream.Recv()
	must(err)
	check(len(m.Payload) == 300000, "%d bytes on the other stream", len(m.Payload))
	for i := range count {
		m, err := stream.Recv()
		must(err)
		check(len(m.Payload) == 1<<20 && m.Attributes["i"] == fmt.Sprint(i), "message %d", i)
		k.ack(m)
	}
}

func deadline() {
	t := topic("deadline")
	p := producer(newClient(), t)
	conn := dial()
	defer conn.Close()
	k := subscribe(conn, t)
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		stream := k.receive(ctx)
		began := time.Now()
		_, err := stream.Recv()
		cancel()
		check(status.Code(err) == codes.DeadlineExceeded && time.Since(began) < time.Second, "%v after %v", err, time.Since(began))
	}
	stream := k.receive(within(20))
	send(p, []byte("x"), nil)
	m, err := stream.Recv()
	must(err)
	check(string(m.Payload) == "x", "payload %q", m.Payload)
}

// Many streams opened and cancelled on one connection, also while messages flow.
func cancelled() {
	t := topic("cancel")
	p := producer(newClient(), t)
	conn := dial()
	defer conn.Close()
	k := subscribe(conn, t)
	for range 5 {
		send(p, make([]byte, 200000), nil)
	}
	for i := range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		stream := k.receive(ctx)
		if i%3 == 0 {
			_, err := stream.Recv()
			must(err)
		}
		cancel()
	}
	stream := k.receive(within(20))
	for i := range 5 {
		m, err := stream.Recv()
		must(err)
		check(m.MsgId.TopicOffset == uint64(i), "offset %d at %d", m.MsgId.TopicOffset, i)
		k.ack(m)
	}
}

func compressed() {
	t := topic("gzip")
	c := newClient()
	producer(c, t)
	k, messages := consumer(c, t, "c", danube.Exclusive)
	defer k.Close()
	sendZeros, conn := rawProducer(t)
	defer conn.Close()
	err := sendZeros(100000, grpc.UseCompressor(gzip.Name))
	if status.Code(err) == codes.Unimplemented { // which gRPC allows
		note("gzip: %v", err)
		return
	}
	must(err)
	m := next(messages, 5*time.Second)
	check(len(m.Payload) == 100000, "%d bytes", len(m.Payload))
	ack(k, m)
	err = sendZeros(64<<20, grpc.UseCompressor(gzip.Name)) // small on the wire, too large once inflated
	check(err != nil && status.Code(err) != codes.DeadlineExceeded, "64 MiB in gzip: %v", err)
}

func metadataAndTexts() {
	conn := dial()
	defer conn.Close()
	stub := proto.NewDiscoveryClient(conn)
	ask := func(size int) error {
		ctx := metadata.AppendToOutgoingContext(within(5), "authorization", "Bearer "+strings.Repeat("x", size),
			"x-danube-broker-url", "http://h:1", "some-bin", string([]byte{0, 1, 2, 255}))
		_, err := stub.TopicPartitions(ctx, &proto.TopicLookupRequest{RequestId: 3, Topic: topic("none")})
		return err
	}
	for _, size := range []int{10, 6000, 7900} {
		must(ask(size))
	}
	err := ask(40000)
	check(status.Code(err) != codes.DeadlineExceeded, "40 kB of metadata: %v", err)
	must(ask(10))
	_, err = stub.TopicLookup(within(5), &proto.TopicLookupRequest{RequestId: 3, Topic: "/default/ü % ✓"})
	check(status.Code(err) == codes.InvalidArgument && strings.Contains(status.Convert(err).Message(), "ü % ✓"), "a name with signs: %v", err)
}

func unimplemented() {
	conn := dial()
	defer conn.Close()
	for _, method := range []string{"/danube.Discovery/Nothing", "/no.Service/Nothing"} {
		err := conn.Invoke(within(5), method, &proto.TopicLookupRequest{}, &proto.TopicLookupResponse{})
		check(status.Code(err) == codes.Unimplemented, "%s: %v", method, err)
	}
}
