//! A pod network with pods that only consist of namespaces; everything is removed on drop.

use std::{
    collections::BTreeSet,
    fs, io,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tempfile::TempDir;
use vk_pod_engine::backend::PortMapping;
use vk_provider_local::{
    namespace::{self, Kind, PodNamespaces},
    network::{Network, NetworkSettings, nft},
};

/// Timeout of an answer. Everything is local, so it only expires if something is wrong.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// A network, its pods, and the servers in them.
pub(crate) struct TestNetwork {
    root: TempDir,
    pub(crate) network: Network,
    pods: Vec<PathBuf>,
    end: Arc<AtomicBool>,
    servers: Vec<JoinHandle<()>>,
}

/// The namespaces of a pod.
#[derive(Clone)]
pub(crate) struct Pod {
    name: String,
    dir: PathBuf,
    pub(crate) address: IpAddr,
}

// === impl TestNetwork ===

impl TestNetwork {
    pub(crate) async fn open() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("network");
        Self::made(root, NetworkSettings { dir, subnet: None, nat: true }).await
    }

    pub(crate) async fn with(settings: NetworkSettings) -> Self {
        Self::made(tempfile::tempdir().unwrap(), settings).await
    }

    async fn made(root: TempDir, settings: NetworkSettings) -> Self {
        let network = Network::open(settings).await.unwrap();
        Self { root, network, pods: Vec::new(), end: Arc::default(), servers: Vec::new() }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("network")
    }

    pub(crate) fn other_dir(&self) -> PathBuf {
        self.root.path().join("other")
    }

    /// A pod attached to the network.
    pub(crate) async fn pod(&mut self, name: &str, ports: &[PortMapping]) -> Pod {
        let mut pod = self.bare(name).await;
        let addresses = self.network.attach(name, &pod.netns(), ports).await.unwrap();
        assert_eq!(addresses.len(), 1);
        assert_eq!(self.network.addresses(name), addresses);
        pod.address = addresses[0];
        pod
    }

    /// A pod that is not attached.
    pub(crate) async fn bare(&mut self, name: &str) -> Pod {
        let dir = self.root.path().join(name);
        fs::create_dir(&dir).unwrap();
        self.pods.push(dir.clone());
        namespace::pin(&dir, &PodNamespaces { network: true, ipc: false, hostname: None }).await.unwrap();
        Pod { name: name.to_owned(), dir, address: IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
    }

    /// Starts a server in a pod that answers with the client's address.
    pub(crate) async fn serve(&mut self, pod: &Pod, port: u16) {
        let listener =
            namespace::run_inside(&pod.netns(), move || TcpListener::bind(("0.0.0.0", port))).await;
        self.answer(&pod.name, listener.unwrap().unwrap());
    }

    /// Starts such a server on any listener.
    pub(crate) fn answer(&mut self, name: &str, listener: TcpListener) {
        let name = name.to_owned();
        self.accept(listener, move |mut stream, peer| {
            let _ = write!(stream, "{name} hears {}", peer.ip());
        });
    }

    /// Starts a server in a pod that reads everything and answers nothing.
    pub(crate) async fn swallow(&mut self, pod: &Pod, port: u16) {
        let listener =
            namespace::run_inside(&pod.netns(), move || TcpListener::bind(("0.0.0.0", port))).await;
        self.accept(listener.unwrap().unwrap(), |mut stream, _| {
            let _ = io::copy(&mut stream, &mut io::sink());
        });
    }

    /// Starts a UDP echo server in a pod.
    pub(crate) async fn echo(&mut self, pod: &Pod, port: u16) {
        let socket = namespace::run_inside(&pod.netns(), move || UdpSocket::bind(("0.0.0.0", port))).await;
        let socket = socket.unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let end = self.end.clone();
        self.servers.push(thread::spawn(move || {
            let mut buffer = [0; 1500];
            while !end.load(Ordering::Relaxed) {
                if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], peer);
                }
            }
        }));
    }

    fn accept(&mut self, listener: TcpListener, serve: impl Fn(TcpStream, SocketAddr) + Send + 'static) {
        // Non-blocking, so that the thread notices the end of the test.
        listener.set_nonblocking(true).unwrap();
        let end = self.end.clone();
        self.servers.push(thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        let _ = stream.set_nonblocking(false);
                        serve(stream, peer);
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        }));
    }

    /// The ports of the bridge.
    pub(crate) fn ports(&self) -> Vec<String> {
        let place = format!("/sys/class/net/{}/brif", self.network.bridge());
        let Ok(listed) = fs::read_dir(place) else { return Vec::new() };
        listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for server in self.servers.drain(..) {
            let _ = server.join();
        }
        let (network, pods) = (self.network.clone(), std::mem::take(&mut self.pods));
        let tidied = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for pod in pods {
                    namespace::unpin(&pod).await.unwrap();
                }
                network.reconcile(&BTreeSet::new()).await.unwrap();
                assert!(network.close().await.unwrap());
            });
        })
        .join();
        assert!(tidied.is_ok() || thread::panicking(), "removing the network failed");
    }
}

// === impl Pod ===

impl Pod {
    pub(crate) fn netns(&self) -> PathBuf {
        Kind::Net.path(&self.dir)
    }

    pub(crate) async fn unpin(&self) {
        namespace::unpin(&self.dir).await.unwrap();
    }

    /// Sets a sysctl in the pod.
    pub(crate) async fn set_sysctls(&self, name: &str, value: &str) {
        namespace::set_sysctls(&self.dir, &[(name.to_owned(), value.to_owned())].into()).await.unwrap();
    }

    /// Connects to a server from the pod and returns its answer.
    pub(crate) async fn call(&self, to: (impl Into<IpAddr>, u16)) -> io::Result<String> {
        let to = SocketAddr::new(to.0.into(), to.1);
        namespace::run_inside(&self.netns(), move || talk(to)).await?
    }
}

/// Connects to a server from the host.
pub(crate) async fn call(to: (impl Into<IpAddr>, u16)) -> io::Result<String> {
    let to = SocketAddr::new(to.0.into(), to.1);
    tokio::task::spawn_blocking(move || talk(to)).await.unwrap()
}

fn talk(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A free port of the host.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn exists(link: &str) -> bool {
    Path::new("/sys/class/net").join(link).exists()
}

pub(crate) fn tables() -> Vec<String> {
    nft::tables().unwrap()
}

pub(crate) fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address}"),
    }
}
