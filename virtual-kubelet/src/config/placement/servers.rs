//! What kube-scheduler and the API server call: the extender and the webhook.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vk_placement::{certificate::ServedNames, convert};
use vk_server::tls::certificate_files::CertificateFiles;

use super::PlacementSettings;
use crate::config::{Gates, Listen, Problem, kubernetes_names::check_key, listen::ServerAddr};

/// Where the extender is served unless configured otherwise.
pub(crate) const EXTENDER_PORT: u16 = 8443;
/// Where the webhook is served unless configured otherwise.
pub(crate) const WEBHOOK_PORT: u16 = 8444;

/// The extender of kube-scheduler.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderSettings {
    /// Where it is served; `:8443` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<ServerAddr>,
}

/// The webhook that converts pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookSettings {
    /// Where it is served; `:8444` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<ServerAddr>,
}

/// The certificate of extender and webhook.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlacementTlsSettings {
    /// The certificate with its chain (PEM). Without files, placement issues one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The key of the certificate (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The CA of the certificate with which kube-scheduler calls the extender (PEM). Without it, placement issues that certificate:
    /// `placement print scheduler` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
    /// Names and IP addresses by which clients call the servers, besides the Service and the local host: the certificate that placement issues
    /// is for these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_names: Option<Vec<String>>,
}

/// The servers: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Where the extender is served. `None`: it is not.
    pub extender: Option<Listen>,
    /// The webhook. `None`: it is not served.
    pub webhook: Option<ServedWebhook>,
    /// The certificate in files. `None`: the one that placement issues.
    pub certificate: Option<CertificateFiles>,
    /// The CA of the extender's clients in a file. `None`: those of placement.
    pub client_ca: Option<PathBuf>,
    /// Further names by which clients call the servers.
    pub server_names: Vec<String>,
}

/// How pods are converted, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedWebhook {
    /// Where it is served.
    pub listen: Listen,
    /// What it does.
    pub conversion: convert::Settings,
}

/// The servers that are on; `None` if none is.
pub(super) fn resolve(
    settings: &PlacementSettings,
    conversion: &convert::Settings,
    problems: &mut Vec<Problem>,
) -> Option<Serving> {
    let listen =
        |given: Option<ServerAddr>, port| given.map_or(Listen { address: None, port }, |given| given.0);
    let extender = settings.extender.as_ref().map(|section| listen(section.listen, EXTENDER_PORT));
    let webhook = settings.webhook.as_ref().map(|section| listen(section.listen, WEBHOOK_PORT));
    if let (Some(extender), Some(webhook)) = (extender, webhook)
        && extender.overlaps(webhook)
    {
        let message = format!("`{webhook}` is where the extender listens: choose another port");
        problems.push(Problem::new("placement.webhook.listen", message));
    }
    let certificate = certificate_files(&settings.tls, problems);
    let client_ca = settings.tls.client_ca_file.clone().filter(|path| path != Path::new(""));
    if extender.is_some() && certificate.is_some() && client_ca.is_none() {
        let message = "is not set, but placement.tls.certFile is: set it to the CA of the certificate with which kube-scheduler calls the extender, \
                       or leave all certificates to placement";
        problems.push(Problem::new("placement.tls.clientCaFile", message));
    }
    let server_names = settings.tls.server_names.clone().unwrap_or_default();
    for name in &server_names {
        if let Err(error) = ServedNames::default().add(name) {
            problems.push(Problem::new("placement.tls.serverNames", error.to_string()));
        }
    }
    let webhook = webhook.map(|listen| ServedWebhook { listen, conversion: conversion.clone() });
    (extender.is_some() || webhook.is_some()).then_some(Serving {
        extender,
        webhook,
        certificate,
        client_ca,
        server_names,
    })
}

fn certificate_files(
    settings: &PlacementTlsSettings,
    problems: &mut Vec<Problem>,
) -> Option<CertificateFiles> {
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| path != Path::new(""));
    let (missing, other) = match (given(&settings.cert_file), given(&settings.key_file)) {
        (Some(cert), Some(key)) => return Some(CertificateFiles { cert, key }),
        (None, None) => return None,
        (None, Some(_)) => ("certFile", "keyFile"),
        (Some(_), None) => ("keyFile", "certFile"),
    };
    let message = format!(
        "is not set, but placement.tls.{other} is: set both, or none to let placement issue a certificate"
    );
    problems.push(Problem::new(format!("placement.tls.{missing}"), message));
    None
}

/// How pods are converted, also if other processes do it.
pub(in crate::config) fn conversion(
    settings: &PlacementSettings,
    problems: &mut Vec<Problem>,
) -> convert::Settings {
    let default = convert::Settings::default();
    let upper_keys = settings.upper_keys.clone().unwrap_or(default.upper_keys);
    for key in &upper_keys {
        if let Err(why) = check_key(key) {
            problems.push(Problem::new("placement.upperKeys", why));
        }
    }
    convert::Settings {
        upper_keys,
        gate: settings.gates.map(|gates| gates != Gates::Off),
        tolerate_lost: settings.tolerate_lost.unwrap_or(default.tolerate_lost),
    }
}

// === impl Serving ===

impl Serving {
    /// All names and addresses by which clients call the servers.
    pub(crate) fn names(&self, namespace: &str) -> ServedNames {
        let mut names = ServedNames::of_service(namespace);
        for name in &self.server_names {
            // They were checked.
            drop(names.add(name));
        }
        names
    }

    /// What all processes have to have in common. Each may listen elsewhere.
    pub(super) fn common(&self) -> PlacementSettings {
        let mut settings = PlacementSettings::default();
        self.add_to(&mut settings);
        settings.extender = self.extender.map(|_| ExtenderSettings::default());
        settings.webhook = self.webhook.as_ref().map(|_| WebhookSettings::default());
        settings
    }

    /// Converts to the structure of the configuration file.
    pub(super) fn add_to(&self, settings: &mut PlacementSettings) {
        settings.extender = self.extender.map(|listen| ExtenderSettings { listen: Some(ServerAddr(listen)) });
        if let Some(webhook) = &self.webhook {
            settings.webhook = Some(WebhookSettings { listen: Some(ServerAddr(webhook.listen)) });
            settings.upper_keys = Some(webhook.conversion.upper_keys.clone());
            settings.tolerate_lost = Some(webhook.conversion.tolerate_lost);
        }
        let files = self.certificate.as_ref();
        settings.tls = PlacementTlsSettings {
            cert_file: files.map(|files| files.cert.clone()),
            key_file: files.map(|files| files.key.clone()),
            client_ca_file: self.client_ca.clone(),
            server_names: Some(self.server_names.clone()).filter(|names| !names.is_empty()),
        };
    }
}
