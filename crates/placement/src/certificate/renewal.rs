//! What the Secret should contain.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::{
    CA_LIFETIME, CA_PUBLICATION, CA_RETIREMENT, LEAF_LIFETIME, ServedNames, after,
    authority::{Authority, SigningAuthority},
    before,
    contents::Contents,
    days,
    leaf::Leaf,
};

/// A renewed leaf must live longer than the old one by this much. A leaf that ends with its CA cannot be renewed by it.
const MIN_GAIN: SignedDuration = days(1);

/// When the next CA issues leaves, whether the API server trusts it or not: the old one is of no use any more.
const LAST_HANDOVER: SignedDuration = days(10);

/// Content that replaces the present one.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) contents: Contents,
    pub(super) changes: Vec<Change>,
}

/// What a renewal changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// There was no Secret, or an empty one.
    Created,
    /// No CA in the Secret can issue leaves, so there is a new one, which clients do not trust yet.
    CaReplaced,
    /// The next CA is in the bundle.
    NextCaAdded {
        /// When it begins to issue leaves.
        issues: Timestamp,
    },
    /// The next CA issues leaves from now on.
    NextCaIssues,
    /// A CA left the bundle, or something that placement has no use for.
    Trimmed,
    /// A leaf was issued, because the old one was due.
    LeafRenewed,
    /// A leaf was issued, because clients would not accept the old one.
    LeafReplaced(String),
}

/// What the present content is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// What the leaf is for.
    pub(super) names: &'a ServedNames,
    /// The wall clock.
    pub(super) now: Timestamp,
    /// The API server trusts the CAs of the present bundle, or does not call the webhook.
    pub(super) bundle_is_published: bool,
}

// === impl Renewal ===

impl Renewal {
    /// What replaces the present content. `None` if it may stay. If it is damaged, what is left of it is used.
    pub(super) fn of(current: Option<&Contents>, target: Target<'_>) -> Result<Option<Self>, rcgen::Error> {
        // Certificates know whole seconds.
        let now = Timestamp::from_second(target.now.as_second()).unwrap_or(target.now);
        let target = Target { now, ..target };
        let empty = Contents::default();
        let old = current.unwrap_or(&empty);
        let old_bundle = Authority::parse_bundle(&old.bundle);
        let mut changes = Vec::new();
        let (signer, next) = if *old == empty {
            changes.push(Change::Created);
            (SigningAuthority::create(now)?, None)
        } else {
            signers(old, &old_bundle, target, &mut changes)?
        };
        let leaf = Leaf::parse(&old.leaf, &old.leaf_key);
        let bundle = trusted(&signer, next.as_ref(), &old_bundle, leaf.as_ref().ok(), target);
        let due = match &leaf {
            Ok(leaf) => leaf.problem(&bundle, target.names, now).map(Change::LeafReplaced).or_else(|| {
                let gain = Leaf::end(&signer, now).duration_since(leaf.not_after);
                let is_old = now >= before(leaf.not_after, LEAF_LIFETIME / 3);
                (is_old && gain >= MIN_GAIN).then_some(Change::LeafRenewed)
            }),
            Err(problem) => Some(Change::LeafReplaced(problem.clone())),
        };
        let (leaf, leaf_key) = if due.is_some() {
            Leaf::issue(&signer, target.names, now)?
        } else {
            (old.leaf.clone(), old.leaf_key.clone())
        };
        changes.extend(due.filter(|_| *old != empty));
        let contents = Contents {
            bundle: Authority::bundle_pem(&bundle),
            ca_key: signer.key,
            next_ca_key: next.map(|next| next.key).unwrap_or_default(),
            leaf,
            leaf_key,
        };
        if current == Some(&contents) {
            return Ok(None);
        }
        if changes.is_empty() {
            changes.push(Change::Trimmed);
        }
        Ok(Some(Self { contents, changes }))
    }
}

/// The CA that issues leaves from now on, and the one that will after it.
fn signers(
    old: &Contents,
    old_bundle: &[Authority],
    target: Target<'_>,
    changes: &mut Vec<Change>,
) -> Result<(SigningAuthority, Option<SigningAuthority>), rcgen::Error> {
    let Target { now, bundle_is_published, .. } = target;
    let find =
        |key: &str| SigningAuthority::find(old_bundle, key).filter(|signer| signer.authority.is_valid(now));
    let mut next = find(&old.next_ca_key);
    let mut signer = find(&old.ca_key);
    let retires = |signer: &mut SigningAuthority| {
        next.as_ref().is_some_and(|next| {
            now >= handover(&signer.authority, &next.authority)
                && (bundle_is_published || now >= before(signer.authority.not_after, LAST_HANDOVER))
        })
    };
    signer.take_if(retires);
    let signer = match (signer, next.take()) {
        (Some(signer), waiting) => {
            next = waiting;
            signer
        }
        (None, Some(promoted)) => {
            changes.push(Change::NextCaIssues);
            promoted
        }
        (None, None) => {
            changes.push(Change::CaReplaced);
            SigningAuthority::create(now)?
        }
    };
    if next.is_none() && now >= before(signer.authority.not_after, CA_LIFETIME / 3) {
        let added = SigningAuthority::create(now)?;
        changes.push(Change::NextCaAdded { issues: handover(&signer.authority, &added.authority) });
        next = Some(added);
    }
    Ok((signer, next))
}

/// The CAs that clients should trust.
fn trusted(
    signer: &SigningAuthority,
    next: Option<&SigningAuthority>,
    old_bundle: &[Authority],
    leaf: Option<&Leaf>,
    Target { names, now, .. }: Target<'_>,
) -> Vec<Authority> {
    let mut bundle: Vec<Authority> =
        [Some(signer), next].into_iter().flatten().map(|signer| signer.authority.clone()).collect();
    // The newest comes first.
    let mut others = old_bundle.iter().filter(|authority| !bundle.contains(authority));
    let retired = others.find(|authority| leaves_may_exist(authority, signer, now)).cloned();
    bundle.extend(retired);
    // The CA of the present leaf stays with it.
    if let Some(leaf) = leaf
        && leaf.problem(&bundle, names, now).is_some()
    {
        let issuer = |authority: &&Authority| leaf.problem(&[(**authority).clone()], names, now).is_none();
        bundle.extend(old_bundle.iter().find(issuer).cloned());
    }
    bundle
}

/// When the next CA begins to issue leaves: as late as possible, because there are clients that read their CA once, but not before others have
/// had time to learn of it.
fn handover(issuing: &Authority, next: &Authority) -> Timestamp {
    before(issuing.not_after, CA_RETIREMENT).max(after(next.created(), CA_PUBLICATION))
}

/// Whether leaves of a CA that issues none any more may still be valid.
fn leaves_may_exist(retired: &Authority, signer: &SigningAuthority, now: Timestamp) -> bool {
    let replaced_early = now < after(signer.authority.created(), LEAF_LIFETIME);
    let replaced_in_time = now >= before(retired.not_after, CA_RETIREMENT);
    retired.is_valid(now) && (replaced_early || replaced_in_time)
}

// === impl Change ===

impl Change {
    /// Whether somebody should know, because clients may have been refused or have to be restarted.
    pub(super) fn is_repair(&self) -> bool {
        matches!(self, Self::CaReplaced)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created => f.write_str("created a CA and a certificate"),
            Self::CaReplaced => f.write_str(
                "no CA in the Secret could issue certificates (its key was missing or did not match, or it was not valid by the clock of this \
                 host), so there is a new one: print the configuration of kube-scheduler again and restart it",
            ),
            Self::NextCaAdded { issues } => write!(
                f,
                "added the next CA to the bundle: print the configuration of kube-scheduler again, and restart it before {}",
                issues.strftime("%F")
            ),
            Self::NextCaIssues => f.write_str("the next CA issues certificates from now on"),
            Self::Trimmed => f.write_str("removed what is not needed any more"),
            Self::LeafRenewed => f.write_str("renewed the certificate"),
            Self::LeafReplaced(problem) => write!(f, "replaced the certificate: {problem}"),
        }
    }
}
