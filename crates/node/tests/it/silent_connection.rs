//! A connection to the API server whose other end is gone without a word.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use vk_kube::{ClientOptions, Metrics};
use vk_supervisor::{Supervisor, task};

use crate::harness::{NodeTest, Setup, Who, renewed};

/// Forwards connections to the API server, until it lets those that are open fall silent.
struct Proxy {
    address: SocketAddr,
    silences: watch::Sender<u32>,
}

impl Proxy {
    async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silences = watch::Sender::new(0);
        let (sender, server) = (silences.clone(), server.trim_start_matches("https://").to_owned());
        let supervisor = Supervisor::new();
        let connections = supervisor.clone();
        supervisor.spawn("proxy", task::Kind::Work, async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mut silences, server) = (sender.subscribe(), server.clone());
                let before = *silences.borrow_and_update();
                connections.spawn("connection", task::Kind::Work, async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    let silent = async move {
                        // Both ends stay open, and nothing passes any more.
                        drop(silences.wait_for(|now| *now > before).await);
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        () = silent => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, silences }
    }

    /// From now on nothing passes on the connections that are open.
    fn fall_silent(&self) {
        self.silences.send_modify(|count| *count += 1);
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_silent_connection_is_dropped_before_leadership_is_lost() {
    let test = NodeTest::shared(Who::Admin, "silent").await;
    let proxy = Proxy::start(test.cluster.url()).await;
    let options = ClientOptions {
        kubeconfig: Some(test.cluster.admin_kubeconfig().to_owned()),
        server: Some(format!("https://{}", proxy.address)),
    };
    let supervisor = Supervisor::new();
    let client = options.connect(&supervisor, Metrics::default()).await.unwrap();
    let mut setup = Setup { client: Some(client), ..Setup::default() };
    setup.settings.lease.duration = Duration::from_secs(9);
    setup.settings.lease.renew_deadline = Duration::from_secs(6);
    setup.settings.lease.standby = Some(Duration::from_secs(1));
    let mut controller = test.start_ready(setup).await;
    let before = test.lease().await;
    proxy.fall_silent();
    let later = |lease: &_| renewed(lease) > renewed(&before) + Duration::from_secs(9);
    tokio::select! {
        _ = test.wait_for_lease("a renewal after the lease would have been lost", later) => {}
        end = controller.end() => panic!("leadership was lost: {end:?}"),
    }
}
