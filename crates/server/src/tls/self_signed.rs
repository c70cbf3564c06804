//! A self-signed serving certificate, used until there is a better one.

use std::{net::IpAddr, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};

use super::{Error, provider};

/// Generates a certificate for this node and these addresses, valid from last year for ten years.
pub fn certificate(node: &str, addresses: &[IpAddr], now: Timestamp) -> Result<Arc<CertifiedKey>, Error> {
    let mut params = CertificateParams::new(vec![node.to_owned()])?;
    params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, node);
    let year = i32::from(now.to_zoned(TimeZone::UTC).year());
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + 10, 1, 1);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(Arc::new(CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider())?))
}
