SELECT coalesce((SELECT later.id
    FROM job AS later
    WHERE later.root_id = root.id
    ORDER BY later.chain_index DESC
    LIMIT 1), root.id) AS id, root.id AS chain_id
FROM job AS root
WHERE root.id = ANY (%(ids)s::UUID[])
AND root.root_id IS NULL
AND root.chain_completed_at IS NULL
ORDER BY root.id
