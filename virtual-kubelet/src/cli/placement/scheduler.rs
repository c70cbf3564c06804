//! `virtual-kubelet placement print scheduler`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use vk_kube::{Client, ServerVersion};
use vk_placement::{
    certificate::{self, ClientCertificate, ServedNames},
    policy::{NAME, untested_version},
    scheduler_config::{MULTICLUSTER, SchedulerConfig},
};
use vk_supervisor::Clock;

use crate::{
    Registry,
    cli::{
        Failure, Flags,
        connection::{load_without_nodes, with_client},
        output::{print, print_diagnostic},
    },
    config::{EXTENDER_PORT, Problem, check_subdomain},
};

/// Prints the configuration of a kube-scheduler that asks the extender (`placement --extender-listen`).
///
/// By default it is for a second kube-scheduler, which schedules the pods that name it. The CA comes from the Secret in which placement keeps its
/// certificates, and issues a certificate for kube-scheduler. The output contains its key: keep it as secret as a password.
#[derive(Debug, Args)]
pub(super) struct PrintScheduler {
    /// Name of the scheduler; `default-scheduler` for the one that the cluster has
    #[arg(long, value_name = "NAME", default_value = MULTICLUSTER, value_parser = parse_name)]
    scheduler_name: String,
    /// Address of the extender (https://host:port) instead of its Service
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    url: Option<String>,
    /// File with the CA of the extender's certificate (PEM) instead of the CA in the Secret of placement
    #[arg(long, value_name = "PATH", requires_all = ["client_cert", "client_key"])]
    ca: Option<PathBuf>,
    /// With --ca: file with the certificate with which kube-scheduler calls the extender (PEM)
    #[arg(long, value_name = "PATH", requires = "ca")]
    client_cert: Option<PathBuf>,
    /// With --ca: file with the key of that certificate (PEM)
    #[arg(long, value_name = "PATH", requires = "ca")]
    client_key: Option<PathBuf>,
    /// How much the scores of the extender count; every other score of kube-scheduler has a weight of 1 to 3
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    weight: u32,
    /// Namespace of the Service and of the Secret of placement
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE", default_value = "kube-system", value_parser = parse_name)]
    placement_namespace: String,
    #[command(flatten)]
    flags: Flags,
}

// === impl PrintScheduler ===

impl PrintScheduler {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let service = || format!("https://{NAME}.{}.svc:{EXTENDER_PORT}", self.placement_namespace);
        let url = self.url.clone().unwrap_or_else(service);
        let files = (&self.ca, &self.client_cert, &self.client_key);
        let (ca_pem, own) = if let (Some(ca), Some(certificate), Some(key)) = files {
            let certificate = read_certificates("client-cert", certificate)?;
            (read_certificates("ca", ca)?, ClientCertificate { certificate, key: read_key(key)? })
        } else {
            let config = load_without_nodes(&before.overlaid_with(self.flags.clone()), None, registry)?;
            with_client(&config, async |client| self.issue(client, &url).await).await?
        };
        let config = SchedulerConfig {
            name: &self.scheduler_name,
            url: &url,
            weight: self.weight,
            ca_pem: &ca_pem,
            certificate_pem: &own.certificate,
            key_pem: &own.key,
        };
        Ok(print(&config.to_string())?)
    }

    /// The CA of placement, and a certificate of it for kube-scheduler.
    async fn issue(&self, client: &Client, url: &str) -> Result<(String, ClientCertificate), Failure> {
        let version = ServerVersion::fetch(client).await.context("ask the API server for its version")?;
        if let Some(warning) = untested_version(version.minor) {
            print_diagnostic("warning", &warning);
        }
        let ca = self.own_ca(client, url).await?;
        let now = Clock::system().now();
        let issued = certificate::client_certificate(client, &self.placement_namespace, now).await;
        Ok((ca, issued.context("issue a certificate for kube-scheduler")?))
    }

    /// The CA of the certificate that placement issues. Warns if that is for other names than the one in the URL.
    async fn own_ca(&self, client: &Client, url: &str) -> Result<String, Failure> {
        let namespace = &self.placement_namespace;
        let bundle = certificate::ca_bundle(client, namespace).await;
        let bundle =
            bundle.context("print the configuration of kube-scheduler; with --ca, nothing is asked")?;
        let names = certificate::issued_names(client, namespace).await;
        let host = host(url);
        let mut wanted = ServedNames::default();
        if let Some(names) = names.context("read the certificate of placement")?
            && wanted.add(host).is_ok()
            && !names.contains(&wanted)
        {
            let message = format!(
                "the certificate of placement is for {names}, and not for {host}, so kube-scheduler will not accept it: start placement with \
                 --server-names {host}"
            );
            print_diagnostic("warning", &message);
        }
        Ok(bundle)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    Ok(fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?)
}

fn read_certificates(flag: &str, path: &Path) -> Result<String, Failure> {
    let pem = read(path)?;
    check_certificates(&pem).map_err(|why| unusable(flag, path, &why))?;
    Ok(pem)
}

fn read_key(path: &Path) -> Result<String, Failure> {
    let pem = read(path)?;
    let checked = PrivateKeyDer::from_pem_slice(pem.as_bytes());
    checked.map_err(|_| unusable("client-key", path, "holds no private key in PEM"))?;
    Ok(pem)
}

fn unusable(flag: &str, path: &Path, why: &str) -> Failure {
    Failure::Configuration(vec![Problem::new(flag, format!("{} {why}", path.display()))])
}

/// kube-scheduler does not verify the server if there is no CA.
fn check_certificates(pem: &str) -> Result<(), String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(()),
        Ok(_) => Err("holds no certificate in PEM".to_owned()),
        Err(error) => Err(format!("is not PEM: {error}")),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    check_subdomain(text).map(|()| text.to_owned())
}

/// The extender is served over TLS only, and its paths are fixed.
fn parse_url(text: &str) -> Result<String, String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let expected = || "expected https://host:port".to_owned();
    let authority = text.strip_prefix("https://").ok_or_else(expected)?;
    let port = authority.rsplit_once(':').map_or(Some(443), |(_, port)| {
        if port.ends_with(']') { Some(443) } else { port.parse::<u16>().ok() }
    });
    let is_host = ServedNames::default().add(host(text)).is_ok();
    if port.is_some_and(|port| port != 0) && is_host { Ok(text.to_owned()) } else { Err(expected()) }
}

/// The host of a URL `https://host:port`. An IPv6 address is in brackets.
fn host(url: &str) -> &str {
    let authority = url.strip_prefix("https://").unwrap_or(url);
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extender_has_an_https_address_without_a_path() {
        for url in [
            "https://192.0.2.1:8443",
            "https://[fd00::1]:8443",
            "https://placement.example.com",
            "https://[::1]",
        ] {
            assert_eq!(parse_url(url), Ok(url.to_owned()));
        }
        assert_eq!(parse_url("https://a:1/"), Ok("https://a:1".to_owned()));
        for wrong in [
            "",
            "a",
            "http://a:1",
            "https://",
            "https://a b",
            "https://a:1/filter",
            "https://a:0",
            "https://a:x",
            "https://a\"b",
        ] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_host_of_an_address_has_no_port() {
        let urls =
            ["https://a:1", "https://10.0.0.1:1", "https://[fd00::1]:1", "https://[fd00::1]", "https://a"];
        assert_eq!(urls.map(host), ["a", "10.0.0.1", "[fd00::1]", "[fd00::1]", "a"]);
    }

    #[test]
    fn a_file_without_a_certificate_is_no_ca() {
        assert!(check_certificates("").is_err());
        assert!(check_certificates("hello").is_err());
        let cut = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        assert!(check_certificates(cut).unwrap_err().contains("is not PEM"));
        let signed = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        assert_eq!(check_certificates(&signed.cert.pem()), Ok(()));
    }
}
