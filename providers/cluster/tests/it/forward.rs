//! Port-forward.

use futures::FutureExt as _;
use http::Method;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    sync::mpsc,
};
use vk_provider::{
    Error, Result,
    ability::{BoxDuplex, Forward, PortForward as _},
};
use vk_streaming::{SessionLimits, client, forward};

use crate::fake_api_server::{FakeApiServer, RecordedRequest, ScriptedAnswer, pod, soon};

/// Serves port-forward like a kubelet behind the API server: ports echo until their input ends, except for port 1, where nothing listens.
fn serve(asked: &RecordedRequest, gone: Option<mpsc::UnboundedSender<()>>) -> ScriptedAnswer {
    let request = forward::Request::parse(&asked.parts).unwrap();
    ScriptedAnswer::Switch(
        request.switching(),
        Box::new(move |io| {
            async move {
                forward::serve(
                    io,
                    &request,
                    |port| async move { echo(port) }.boxed(),
                    &SessionLimits::default(),
                )
                .await;
                if let Some(gone) = gone {
                    let _ = gone.send(());
                }
            }
            .boxed()
        }),
    )
}

fn echo(port: u16) -> Result<Forward> {
    if port == 1 {
        return Err(Error::unavailable("dial tcp4 127.0.0.1:1: connect: connection refused"));
    }
    let (ours, theirs) = duplex(1 << 10);
    // A pipe back to this side.
    let (reader, writer) = tokio::io::split(ours);
    let stream: BoxDuplex = Box::new(theirs);
    // The task ends with the stream.
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let (mut reader, mut writer) = (reader, writer);
        let prefix = format!("{port}:");
        let _ = writer.write_all(prefix.as_bytes()).await;
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        let _ = writer.shutdown().await;
    });
    tasks.detach_all();
    Ok(Forward::Stream(stream))
}

async fn dial(api: &FakeApiServer, port: u16) -> BoxDuplex {
    match soon(api.streams().dial(&pod(), port)).await.unwrap() {
        Forward::Stream(stream) => stream,
        Forward::Url(_) => panic!("there is no address to give"),
    }
}

async fn exchange(mut stream: BoxDuplex, bytes: &[u8]) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let mut all = Vec::new();
    let sending = async {
        writer.write_all(bytes).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let (read, ()) = soon(futures::future::join(reader.read_to_end(&mut all), sending)).await;
    read.unwrap();
    all
}

#[tokio::test]
async fn bytes_flow_both_ways_and_directions_close_independently() {
    let api = FakeApiServer::start(|asked| serve(asked, None)).await;
    let big: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    let answer = exchange(dial(&api, 8080).await, &big).await;
    assert!(answer.starts_with(b"8080:") && answer[5..] == big[..], "{} bytes", answer.len());
    let asked = api.only();
    assert_eq!(asked.path, "/api/v1/namespaces/lower/pods/web-x/portforward");
    assert_eq!((asked.method.clone(), asked.offers()), (Method::GET, "SPDY/3.1+portforward.k8s.io"));
}

#[tokio::test]
async fn connections_are_apart() {
    let api = FakeApiServer::start(|asked| serve(asked, None)).await;
    let (one, other) = (dial(&api, 80).await, dial(&api, 81).await);
    assert_eq!(exchange(other, b"b").await, b"81:b");
    assert_eq!(exchange(one, b"a").await, b"80:a");
}

#[tokio::test]
async fn spdy_is_used_without_tunnel_support() {
    let api = FakeApiServer::start(|asked| match asked.method {
        Method::GET => ScriptedAnswer::Text(400, "unable to upgrade".to_owned()),
        _ => serve(asked, None),
    })
    .await;
    assert_eq!(exchange(dial(&api, 80).await, b"a").await, b"80:a");
    assert_eq!(api.asked().len(), 2);
}

#[tokio::test]
async fn a_closed_port_is_an_error_of_the_first_read() {
    let api = FakeApiServer::start(|asked| serve(asked, None)).await;
    let told = match soon(api.streams().dial(&pod(), 1)).await {
        Err(error) => error.report(),
        Ok(Forward::Stream(mut stream)) => {
            let mut all = Vec::new();
            soon(stream.read_to_end(&mut all)).await.unwrap_err().to_string()
        }
        Ok(Forward::Url(_)) => panic!("there is no address to give"),
    };
    assert!(told.contains("connection refused"), "{told}");
}

#[tokio::test]
async fn errors_of_a_port_reach_the_client() {
    let api = FakeApiServer::start(|asked| serve(asked, None)).await;
    let (ours, theirs) = duplex(64 << 10);
    let request = http::Request::post("/portForward/upper/web")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "portforward.k8s.io")
        .body(())
        .unwrap();
    let request = forward::Request::parse(&request.into_parts().0).unwrap();
    let streams = api.streams();
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move {
        let dial = move |port| {
            let streams = streams.clone();
            async move { streams.dial(&pod(), port).await }.boxed()
        };
        forward::serve(theirs, &request, dial, &SessionLimits::default()).await;
    });
    let client =
        client::forward_upgraded(ours, forward::Protocol::Spdy, &[], &SessionLimits::default()).await;
    assert_eq!(exchange(soon(client.open(80)).await.unwrap(), b"a").await, b"80:a");
    let told = match soon(client.open(1)).await {
        Err(error) => error.report(),
        Ok(mut stream) => soon(stream.read_to_end(&mut Vec::new())).await.unwrap_err().to_string(),
    };
    assert!(told.contains("error forwarding port 1") && told.contains("connection refused"), "{told}");
}

#[tokio::test]
async fn dropping_the_connection_closes_the_lower_one() {
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let api = FakeApiServer::start(move |asked| serve(asked, Some(gone.clone()))).await;
    drop(dial(&api, 80).await);
    soon(is_gone.recv()).await.unwrap();
}
